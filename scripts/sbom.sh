#!/bin/sh
# Writes a CycloneDX SBOM of what the proxy needs at run time, as it is installed: scripts/sbom.sh [FILE]
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
. "$root/scripts/setup.sh"

set_up runtime dev
exec "$venv/bin/python" -E -s "$root/scripts/sbom.py" "$@"
