#!/bin/sh
# Everything that must hold: lint, format, types, architecture, tests; stops at the first that fails. `--help` has the parts.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
. "$root/scripts/setup.sh"

usage() {
    cat <<'EOF'
Usage: ./run_tests.sh [--all | --long | --checks | ARGUMENTS FOR PYTEST]

  (nothing)   lint, format, imports, types, the unit tests, and the most telling tests with real processes:
              at most five minutes on two cores, once .venv is there
  --all       the same with all tests that start real processes or servers: about 25 minutes
  --long      what takes longer instead: simulations, fuzzing, other versions of mitmproxy and Redis, a soak, kills,
              power failures: about 30 minutes
  --checks    lint, format, imports and types alone
  --help      this text

Other arguments go to pytest, and nothing else runs: ./run_tests.sh tests/core -k sse
EOF
}

if [ "${1-}" = --help ] || [ "${1-}" = -h ]; then
    usage
    exit
fi
set_up runtime dev
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PATH="$venv/bin:$PATH"
cd "$root"
# Each of some hundred processes would compile it all again.
unset PYTHONDONTWRITEBYTECODE

step() {
    say "$*"
    began=$(date +%s)
    ("$@") || {
        status=$?
        say "failed: $*"
        exit $status
    }
    say "$(($(date +%s) - began)) s"
}

# The older mitmproxy that pyproject.toml allows, in a folder that comes before those of the environment.
older_mitmproxy() {
    if has_uv; then
        uv pip install --quiet --python "$venv/bin/python" --no-deps --target "$1" 'mitmproxy==12.2.*' zstandard
    else
        "$venv/bin/python" -I -m pip install --quiet --disable-pip-version-check --no-input --no-deps --target "$1" \
            'mitmproxy==12.2.*' zstandard
    fi
}

# What hangs fails, long before CI gives up. Replaces the subshell that calls it, so that `kill $!` ends the command.
bounded() { exec "$venv/bin/python" -I scripts/bounded.py "$@"; }

if [ "${1-}" = --long ]; then
    step bounded 600 python -m tests.simulation --chats 200
    # Always the same seed, and on a fast machine no further: no change fails by a chance that has nothing to do with it.
    step bounded 600 python -m tests.fuzz --seconds 20 --seed 1 --max-tries 20000
    step bounded 900 python -m pytest -m hypothesis --ignore tests/e2e --hypothesis-profile long --hypothesis-seed 1 --timeout 600
    export TOOLGRAFT_TEST_REDIS=valkey-server # instead of redis-server
    step bounded 1200 python -m pytest tests/store tests/faults -k redis
    unset TOOLGRAFT_TEST_REDIS
    older_mitmproxy "$venv/older"
    (
        export PYTHONPATH="$venv/older:$PYTHONPATH"
        step bounded 1200 python -m pytest tests/hooks
    )
    step bounded 1800 python -m pytest -m long
    step bounded 400 python -m tests.soak --seconds 30 --quiet
    step bounded 1200 python -m tests.crash --kills 20 --quiet
    step bounded 800 python -m tests.crash --kills 10 --power --quiet
    step bounded 800 python -m tests.crash --kills 10 --store redis --quiet
    exit
fi
checks() {
    step ruff check --quiet .
    step ruff format --quiet --check .
    step lint-imports --no-logo
}

# Its cache is in .venv: only what has changed is checked again.
types() { bounded 600 mypy --cache-dir "$venv/.mypy_cache"; }

# One pytest, and the types beside it. What mypy prints comes when both have ended.
tests_and_types() {
    say "mypy, beside the tests"
    types >"$venv/.mypy.out" 2>&1 &
    mypy=$!
    trap 'kill $mypy 2>/dev/null; exit 130' INT TERM
    status=0
    # Neighbours share what a module or a session has started: each process keeps to its half, and then takes of the other.
    (step bounded "$1" python -m pytest --numprocesses auto --dist worksteal -m "$2") || status=$?
    wait $mypy || {
        cat "$venv/.mypy.out"
        say "failed: mypy"
        [ $status -ne 0 ] || status=1
    }
    return $status
}

case "${1-}" in
    --checks)
        checks
        step types
        ;;
    --all)
        say "all tests but the long ones: about 25 minutes on two cores"
        trap 'say "not run: the long tests. ./run_tests.sh --long runs them"' EXIT
        checks
        tests_and_types 3300 "not long"
        ;;
    "")
        say "the quick tests: at most five minutes on two cores"
        trap 'say "not run: most tests with real processes, and the long ones. ./run_tests.sh --all and --long run them"' EXIT
        checks
        tests_and_types 1200 "not e2e or smoke"
        ;;
    *)
        exec "$venv/bin/python" -m pytest "$@"
        ;;
esac
