"""Runs the whole demo, and cleans up however it ends."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncGenerator
from typing import Literal

from rich.console import Console

from addon.demo import loop, story
from addon.demo.stage import DemoFailed, Plan, Stage, set_stage
from addon.demo.story import Beat, document_of
from addon.demo.view import View

Part = Literal["chat", "loop"]


def run(part: Part = "chat", *, session: str = "default", as_json: bool = False) -> int:
    """Run the demo and return its exit status: 0 if all checks passed, 1 if one failed (stderr says which), 128 plus
    the signal's number if a signal ended it. Nothing is left running.

    `as_json` prints each `story.Beat` as one line of JSON, instead of pictures.
    """
    try:
        asyncio.run(_perform(part, session, as_json))
    except (DemoFailed, OSError) as failed:
        notes = getattr(failed, "__notes__", [])
        print("\n".join([f"toolgraft: the demo failed: {failed}", *notes]), file=sys.stderr)
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
    plan = loop.plan() if part == "loop" else Plan()
    async with set_stage(session, plan) as stage, contextlib.aclosing(_play(part, stage)) as beats:
        if not as_json:
            view.opening(stage)
        async for beat in beats:
            if as_json:
                print(json.dumps(document_of(beat), ensure_ascii=False), flush=True)
            else:
                view.show(beat)
    if not as_json:
        view.closing(loop.NEXT if part == "loop" else story.NEXT)


def _play(part: Part, stage: Stage) -> AsyncGenerator[Beat]:
    return loop.play(stage) if part == "loop" else story.play(stage)
