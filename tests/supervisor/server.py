"""A stand-in for mitmdump below a supervisor: answers each line with its pid, or `states` with every process's,
or `restart SERVER` with the question that each has got.

`python server.py PORT FOLDER [SLOT]` locks FOLDER. Starts in SLOT fail as often as the file `failures` in it says;
those in -SLOT end as soon as they are ready. A process says that it ends within the seconds in `ends_within`, if that
file is there.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from addon.supervisor.membership import membership

MORE = 1_500_000, 60_000
"""Characters of a state besides, in slot 0 and in others: one state is too large for a packet, and all together are."""


async def main() -> None:
    member = membership()
    assert member is not None
    folder = Path(sys.argv[2])
    if sys.argv[3:] == [str(member.slot)]:
        failures = folder / "failures"
        if left := int(failures.read_text()):
            failures.write_text(str(left - 1))
            sys.exit(3)
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = f"{os.getpid()}"
        asked = (await reader.readline()).decode().split()
        if asked[0] == "states":
            line = json.dumps(sorted(state["pid"] for state in await member.states()))
        if asked[0] == "restart":
            line = json.dumps([state["question"] for state in await member.states({"restart": asked[1]})])
        writer.write(f"{line}\n".encode())
        writer.close()

    try:
        member.lock(folder)
        servers = [await asyncio.start_server(answer, sock=one) for one in member.listen("127.0.0.1", int(sys.argv[1]))]
    except OSError as error:
        sys.exit(f"cannot start: {error}")
    port = servers[0].sockets[0].getsockname()[1]
    bound = folder / "ends_within"
    member.say_ready(
        ends_within=float(bound.read_text()) if bound.exists() else 60.0,
        describe=lambda question: {
            "pid": os.getpid(),
            "question": question,
            "more": "x" * MORE[min(member.slot, 1)],
        },
        retire=end.set,
        orphaned=end.set,
    )
    if sys.argv[3:] == [f"-{member.slot}"]:
        sys.exit(7)
    # one write: `print` makes two where Python does not buffer, and the lines of several processes run together
    os.write(sys.stdout.fileno(), f"slot {member.slot} pid {os.getpid()} port {port}\n".encode())
    await end.wait()
    await asyncio.sleep(0)  # what was accepted has its transport by then
    for server in servers:
        server.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):  # as mitmdump does, it answers what it has accepted
            for server in servers:
                await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
