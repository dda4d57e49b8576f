#!/bin/sh
# Sets up .venv if needed, and starts the proxy (toolgraft serve) or runs a command. Arguments go to mitmdump:
#
#   ./run_proxy.sh                       a proxy on 127.0.0.1:8080, the Gemini API on 127.0.0.1:8081
#   ./run_proxy.sh --mode reverse:http://127.0.0.1:9912@8080 --set graft_store=memory://
#   ./run_proxy.sh calls --watch         a command of the command line
#   TOOLGRAFT_UI=mitmweb ./run_proxy.sh  another of mitmproxy's three faces
set -eu
# Where stdout or stderr is closed Python has none, and mitmproxy does not start.
true >&2 || exec 2>/dev/null
{ true >&1; } 2>/dev/null || exec >/dev/null
root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
. "$root/scripts/setup.sh"

set_up runtime
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

# A word is a command, a misspelt one as well: mitmdump would take it for a flow filter, and start.
case ${1:-} in
    [A-Za-z]*) ;;
    *) set -- serve "$@" ;;
esac
exec "$venv/bin/python" -P -m addon "$@"
