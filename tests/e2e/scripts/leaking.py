"""A script that keeps some memory, a descriptor and a task for each request."""

import asyncio
import os
from typing import Any

kept: list[Any] = []


async def request(flow: Any) -> None:
    waiting = asyncio.ensure_future(asyncio.Event().wait())
    kept.append((bytearray(os.urandom(40_000)), os.open(os.devnull, os.O_RDONLY), waiting))
