"""`toolgraft worker`: runs a Python file's functions for a proxy on any machine."""

import asyncio
import os
import signal
import socket
from contextlib import AsyncExitStack
from typing import Annotated, Any

import typer

from addon.cli import options, output


def serve(
    file: Annotated[str, typer.Argument(help="A Python file; its public functions are the tools.", metavar="FILE.py")],
    session: options.Session = "default",
    url: options.Url = None,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="How many calls may run at once.", metavar="N")] = 4,
    lease: Annotated[
        float,
        typer.Option(
            min=1,
            max=3600,
            help="Seconds without contact after which another worker may take over a call.",
            metavar="S",
        ),
    ] = 10,
    as_json: options.Json = False,
) -> None:
    """Run the tools of a Python file for a session, until stopped.

    The tools are added to the session's. Any number of workers may share the calls. Prints one line per call; with
    --json, one JSON line per event.
    """
    source = _source(file)
    if error := asyncio.run(_serve(source, session, url, concurrency, lease, as_json)):
        output.fail(error)


def _source(file: str) -> Any:
    from addon.tools.python import PythonSource

    try:
        return PythonSource(file)
    except ValueError as error:
        output.fail(str(error))


async def _serve(source: Any, session: str, url: str | None, concurrency: int, lease: float, as_json: bool) -> str:
    """Serve until a signal arrives. Returns why the worker could not continue, or ""."""
    import secrets

    import httpx2

    from addon.cli.api import UNKNOWN_TOKEN, client_arguments
    from addon.cli.worker_client import Refused, Worker
    from addon.process import exit_with_loop
    from addon.tools.attempts import abandoned_calls

    base, arguments = client_arguments(url)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    def report(event: dict[str, Any]) -> None:
        if as_json:
            output.print_json(event, indent=None)
        else:
            _print_event(event, base)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx2.AsyncClient(base_url=base, **arguments))
        worker = Worker(
            await stack.enter_async_context(source),
            client,
            session=session,
            name=f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(4)}",
            concurrency=concurrency,
            lease=lease,
            report=report,
        )
        stack.callback(exit_with_loop, abandoned_calls)
        try:
            await worker.run(stop, hurry)
        except Refused as error:
            return UNKNOWN_TOKEN if error.status == 401 else str(error)
    return ""


def _print_event(event: dict[str, Any], base: str) -> None:
    match event["event"]:
        case "serving":
            output.note(f"session {event['session']}: serving {', '.join(event['tools'])} for {base}")
        case "unreachable":
            output.note(f"{base} does not answer ({event['error']}); retrying")
        case "answered":
            _print_call(event, f"{event['status']}, {event['seconds']:.3f} s")
        case "lost":
            _print_call(event, f"lost: {event['error']}")
        case "abandoned":
            _print_call(event, "not finished; the call may have run")
        case "returned":
            _print_call(event, "returned for another worker")


def _print_call(event: dict[str, Any], what: str) -> None:
    print(output.plain(f"{event['call_id']} {event['name']}: {what}"), flush=True)
