#!/bin/sh
# Starts mitmdump with the addon, after setting up .venv where that is needed. Arguments go to mitmdump:
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

ui=${TOOLGRAFT_UI:-mitmdump}
case $ui in
    mitmdump | mitmweb | mitmproxy) ;;
    *)
        say "TOOLGRAFT_UI=$ui: must be mitmdump, mitmweb or mitmproxy"
        exit 1
        ;;
esac

set_up runtime
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

# A word is a command, a misspelt one as well: mitmdump would take it for a flow filter, and start.
case ${1:-} in
    [A-Za-z]*) exec "$venv/bin/python" -P -m addon "$@" ;;
esac

# Defaults are given as --set: config.yaml goes before that, and mitmproxy's own flags (--mode, -p) before both. But
# a --set of the user's would join them, or be refused as the second one.
modes=default listen=default strategy=default host_header=default web=default previous=
for argument do
    case $previous in
        --set) argument=--set=$argument ;;
    esac
    case $argument in
        --set=mode | --set=mode=*) modes=own ;;
        --set=listen_host | --set=listen_host=*) listen=own ;;
        --set=connection_strategy=*) strategy=own ;;
        --set=keep_host_header | --set=keep_host_header=*) host_header=own ;;
        --set=web_port | --set=web_port=*) web=own ;;
    esac
    previous=$argument
done
[ $modes = own ] || set -- --set mode=regular --set mode=reverse:https://generativelanguage.googleapis.com@8081 "$@"
# mitmproxy listens to the whole network unless it is told otherwise; a mode with @host:port of its own goes before this.
[ $listen = own ] || set -- --set listen_host=127.0.0.1 "$@"
# Lazy: a request can be sent elsewhere, or refused, before any connection. Host: the addon checks what the client said.
[ $strategy = own ] || set -- --set connection_strategy=lazy "$@"
[ $host_header = own ] || set -- --set keep_host_header=true "$@"
# mitmweb's own page would be at the port of the reverse proxy.
[ "$ui" != mitmweb ] || [ $web = own ] || set -- --set web_port=8082 "$@"
exec "$venv/bin/$ui" -s "$root/addon/entry.py" "$@"
