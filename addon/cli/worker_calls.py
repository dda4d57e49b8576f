"""One call in a worker's hands: run, kept by its lease, and answered. Nothing here claims calls."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import tenacity

from addon.cli.control_client import ControlClient, Document, Refused, Unreachable, json_of
from addon.tools.bounded import bounded

PATIENCE = 300.0  # seconds for which an answer is sent again while the proxy does not take it
FIRST_DELAY, MAX_DELAY = 0.2, 5.0  # seconds between attempts while the proxy does not answer
_LAST_WORD = 2.0  # seconds for the last request of a worker that stops
_STOPPED = "the worker was stopped while it ran this call: the call may have run"
_ERROR = b'{"error":'


class Source(Protocol):
    """Runs calls: tools with `declaration` and `rules`, listed once. `call` raises what the model is told."""

    async def list_tools(self) -> Sequence[Any]: ...
    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any: ...


class WorkerCall:
    """`rules` are those of the call's tool. `lease` is in seconds. `report` is told of each event."""

    def __init__(
        self,
        call: Document,
        rules: Any,
        source: Source,
        api: ControlClient,
        *,
        worker: str,
        lease: float,
        report: Callable[[Document], None],
    ) -> None:
        self.call_id: str = call["call_id"]
        self.settled = False
        self._call = call
        self._rules = rules
        self._source = source
        self._api = api
        self._worker = worker
        self._lease = lease
        self._report = report

    async def handle(self) -> None:
        """Run the call until the proxy has taken its answer, or the call is lost: `settled` says which. A cancelled
        call is given back if it may run twice; otherwise its answer says that it may have run."""
        began = time.monotonic()
        self._tell("claimed", args=self._call["args"])
        work = asyncio.ensure_future(self._answer())
        keeping = asyncio.ensure_future(self._keep())
        try:
            await asyncio.wait((work, keeping), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                keeping.result()  # raises Refused: the call is no longer this worker's
            status = await self._post(work.result())
            self.settled = True
            self._tell("answered", status=status, seconds=round(time.monotonic() - began, 3))
        except (Refused, Unreachable) as error:
            self._tell("lost", error=str(error))
        except asyncio.CancelledError:
            await self._stop(work)
            raise
        finally:
            keeping.cancel()
            work.cancel()
            await asyncio.wait((keeping,))
            if not keeping.cancelled():
                keeping.exception()  # the answer is what counts

    async def _keep(self) -> None:
        """Renew the lease until the call is answered. Raises Refused if the call is another worker's, or final."""
        pause = self._lease / 2
        while True:
            await asyncio.sleep(pause)
            try:
                await self.renew(self._lease, timeout=self._lease / 2)
                pause = self._lease / 2
            except Unreachable:
                pause = min(self._lease / 2, 1.0)

    async def renew(self, lease: float, *, timeout: float) -> None:
        body = {"worker": self._worker, "lease": lease}
        await self._api.request("POST", f"/v1/calls/{self.call_id}/renew", body, timeout=timeout)

    async def _stop(self, work: asyncio.Future[bytes]) -> None:
        """The worker stops: hand the call on, or answer it."""
        work.cancel()
        await asyncio.wait((work,), timeout=1)
        try:
            if work.done() and not work.cancelled():
                await self._result(work.result(), timeout=_LAST_WORD)
                self._tell("answered", status="done", seconds=0.0)
            elif self._rules.idempotent or self._rules.redeliver:
                await self.renew(0, timeout=_LAST_WORD)
                self._tell("returned")
            else:
                await self._result(json_of({"error": _STOPPED}), timeout=_LAST_WORD)
                self._tell("abandoned")
        except (Refused, Unreachable) as error:
            self._tell("lost", error=str(error))

    async def _answer(self) -> bytes:
        """Run the call; the body of its answer, whatever comes of it."""
        name, rules = self._call["name"], self._rules

        async def called() -> Any:
            return await self._source.call(name, self._call["args"], call_id=self.call_id)

        async def once() -> Any:
            return await bounded(called, rules.timeout, name)

        def again(error: BaseException) -> bool:
            safe = rules.idempotent or not getattr(error, "sent", True)
            return safe and getattr(error, "retryable", False)

        retries = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(1 + (rules.retries or 0)),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
            retry=tenacity.retry_if_exception(again),
            reraise=True,
        )
        try:
            return json_of({"result": await retries(once)})
        except Exception as error:
            words = str(error) or type(error).__name__
            return json_of({"error": words.encode(errors="replace").decode()})

    async def _post(self, body: bytes) -> str:
        """Send the answer, for PATIENCE seconds while the proxy is away; the status that the proxy gives the call.
        Raises Refused, Unreachable."""
        delay, deadline = FIRST_DELAY, time.monotonic() + PATIENCE
        while True:
            try:
                return await self._result(body, timeout=30)
            except Unreachable as error:
                if time.monotonic() + delay > deadline:
                    raise Unreachable(f"the answer was not taken in {PATIENCE:g} s: {error}") from None
                await asyncio.sleep(delay)
                delay = min(2 * delay, MAX_DELAY)
            except Refused as error:
                if error.status not in (400, 413, 422) or body.startswith(_ERROR):
                    raise
                body = json_of({"error": f"the result cannot be sent: {error}"})

    async def _result(self, body: bytes, *, timeout: float) -> str:
        answer = await self._api.request("POST", f"/v1/calls/{self.call_id}/result", body, timeout=timeout)
        return str(answer.json()["status"])

    def _tell(self, event: str, **fields: Any) -> None:
        self._report({"event": event, "call_id": self.call_id, "name": self._call["name"], **fields})
