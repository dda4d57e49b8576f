#!/bin/sh
# Everything that must hold: lint, format, types, architecture, tests; stops at the first that fails.
# --checks: without the tests. --long: what takes longer instead: simulations, fuzzing, examples, several processes, a soak, kills, power failures.
# With other arguments it runs pytest alone, and they go to it: ./run_tests.sh tests/core -k sse
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
. "$root/scripts/setup.sh"

set_up runtime dev
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PATH="$venv/bin:$PATH"
cd "$root"
# Each of some hundred processes would compile it all anew.
unset PYTHONDONTWRITEBYTECODE

step() {
    say "$*"
    began=$(date +%s)
    "$@" || {
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

# What hangs fails, long before CI gives up.
bounded() { "$venv/bin/python" -I scripts/bounded.py "$@"; }

if [ "${1-}" = --long ]; then
    step bounded 600 python -m tests.simulation --chats 200
    # Always the same seed, and on a fast machine no further: no change fails by a chance that has nothing to do with it.
    step bounded 600 python -m tests.fuzz --seconds 20 --seed 1 --max-tries 20000
    step bounded 900 python -m pytest -m hypothesis --ignore tests/e2e --hypothesis-profile long --hypothesis-seed 1
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
    step mypy
    step lint-imports --no-logo
}

if [ "${1-}" = --checks ]; then
    checks
    exit
fi
if [ $# -eq 0 ]; then
    checks
    # Neighbours share what a module or a session has started: each process keeps to its half, and then takes of the other.
    step bounded 1200 python -m pytest --numprocesses auto --dist worksteal -m "not e2e" --ignore tests/e2e
    step bounded 2700 python -m pytest --numprocesses auto --dist worksteal -m "e2e and not long"
    exit
fi
exec "$venv/bin/python" -m pytest "$@"
