#!/bin/sh
# Starts mitmdump with the addon, after setting up .venv where that is needed. Arguments go to mitmdump:
#
#   ./run_proxy.sh                       a proxy on 127.0.0.1:8080, the Gemini API on 127.0.0.1:8081
#   ./run_proxy.sh --mode reverse:http://127.0.0.1:9912@8080 --set graft_store=memory://
#   ./run_proxy.sh calls --watch         a command of the command line
#   TOOLGRAFT_UI=mitmweb ./run_proxy.sh  another of mitmproxy's three faces
set -eu
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

case ${1:-} in
    token | tools | calls | result | worker | env | run | replay | demo) exec "$venv/bin/python" -P -m addon "$@" ;;
esac

# mitmproxy refuses an option that is set twice: a default is given only where the user's arguments have none.
modes=default listen=default strategy=default host_header=default previous=
for argument do
    case $previous in
        --set) argument=--set=$argument ;;
    esac
    case $argument in
        -m* | --mode | --mode=* | --set=mode | --set=mode=*) modes=own ;;
        -p* | --listen-port | --listen-port=* | --set=listen_port=*) modes=own ;;
        --listen-h* | --set=listen_host | --set=listen_host=*) modes=own listen=own ;;
        --set=connection_strategy=*) strategy=own ;;
        --set=keep_host_header | --set=keep_host_header=*) host_header=own ;;
    esac
    previous=$argument
done
if [ $modes = default ]; then
    set -- --mode regular@127.0.0.1:8080 --mode reverse:https://generativelanguage.googleapis.com@127.0.0.1:8081 "$@"
fi
# mitmproxy listens to the whole network unless it is told otherwise; a mode with @host:port of its own goes before this.
[ $modes = default ] || [ $listen = own ] || set -- --listen-host 127.0.0.1 "$@"
# Lazy: a request can be sent elsewhere, or refused, before any connection. Host: the addon checks what the client said.
[ $strategy = own ] || set -- --set connection_strategy=lazy "$@"
[ $host_header = own ] || set -- --set keep_host_header=true "$@"
exec "$venv/bin/$ui" -s "$root/addon/entry.py" "$@"
