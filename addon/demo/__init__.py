"""The demo: a plain client, the proxy and the strict local Gemini, with the data on both connections side by side.

It uses the proxy from outside, as a user does: it starts mitmdump as a process and speaks HTTP.
"""

import asyncio
import contextlib
import json
import signal
import sys
from typing import Literal

import httpx2
from rich.console import Console

from addon.demo import loop, story
from addon.demo.stage import DemoFailed, Plan, set_stage
from addon.demo.view import View

Part = Literal["chat", "loop"]


def run(part: Part = "chat", *, session: str = "default", as_json: bool = False) -> int:
    """Run the demo and return its exit status: 0 if all checks passed, 1 if one failed (stderr says which), 128 plus
    the signal's number if a signal ended it. Nothing is left running.

    `as_json` prints each `story.Beat` as one line of JSON, instead of pictures.
    """
    try:
        asyncio.run(_perform(part, session, as_json))
    except (DemoFailed, OSError, httpx2.HTTPError) as error:
        reason = str(error) or type(error).__name__
        print("\n".join([f"toolgraft: the demo failed: {reason}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    return 0


async def _perform(part: Part, session: str, as_json: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):  # on systems without these signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, task.cancel)
    view = View(Console(highlight=False, markup=False, emoji=False))
    chapter = loop if part == "loop" else story
    async with set_stage(session, loop.plan() if part == "loop" else Plan()) as stage:
        if not as_json:
            view.opening(stage)
        async with contextlib.aclosing(chapter.play(stage)) as beats:
            async for beat in beats:
                if as_json:
                    print(json.dumps(story.document_of(beat), ensure_ascii=False), flush=True)
                else:
                    view.show(beat)
    if not as_json:
        view.closing(chapter.NEXT)
