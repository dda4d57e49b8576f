#!/bin/sh
# Asks a service (PyPI's, by default) which of the pinned packages are known to be vulnerable; status 1 where one is,
# or where one could not be asked for. Arguments go to pip-audit: scripts/audit.sh --vulnerability-service osv
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
. "$root/scripts/setup.sh"

set_up runtime dev
cd "$root"
"$venv/bin/python" -m pip_audit --strict --no-deps --disable-pip --progress-spinner off \
    --requirement constraints.txt "$@" || {
    status=$?
    say "a package is vulnerable, or the service knows nothing of it or cannot be reached; what it said is above"
    exit $status
}
