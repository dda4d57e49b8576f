#!/bin/sh
# Everything that must hold: lint, format, types, architecture, tests; stops at the first that fails.
# --long: what takes longer instead: simulations, fuzzing, kills and power failures.
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
    "$@" || {
        status=$?
        say "failed: $*"
        exit $status
    }
}

if [ "${1-}" = --long ]; then
    step python -m tests.simulation --chats 300
    step python -m tests.fuzz --seconds 60
    step python -m tests.crash --kills 200 --quiet
    step python -m tests.crash --kills 60 --power --quiet
    exit
fi
if [ $# -eq 0 ]; then
    step ruff check --quiet .
    step ruff format --quiet --check .
    step mypy
    step lint-imports --no-logo
    step python -m pytest --numprocesses auto -m "not e2e" --ignore tests/e2e
    set -- -m e2e # one after the other: they start processes of their own
    say "python -m pytest $*"
fi
exec "$venv/bin/python" -m pytest "$@"
