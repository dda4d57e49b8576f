"""One claimed call of a worker: runs it, renews its lease, and sends its result."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from addon.cli.control_client import ControlClient, Refused, Unreachable, json_of
from addon.core.framing.documents import Document
from addon.tools.attempts import bounded, with_retries
from addon.tools.outputs import Media, collector

PATIENCE = 300.0  # seconds for repeated attempts to send a result
FIRST_DELAY, MAX_DELAY = 0.2, 5.0  # seconds between attempts while the proxy does not answer
_STOP_TIMEOUT = 2.0  # seconds for the last request when the worker stops
_STOPPED = "the worker was stopped while it ran this call: the call may have run"
_ERROR = b'{"error":'


def _body_of(result: Any) -> bytes:
    """The body with a result; its images, sounds and files are in `parts`."""
    media: list[Media] = []
    body = json_of({"result": result}, collector(media))
    return body if not media else body[:-1] + b"," + json_of({"parts": [one.part for one in media]})[1:]


class CallSource(Protocol):
    """Lists tools with `declaration` and `rules` (once), and runs calls. Exceptions of `call` are for the model."""

    async def list_tools(self) -> Sequence[Any]: ...
    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any: ...


class WorkerCall:
    """`rules`: those of the call's tool. `lease`: seconds. `report` is called with each event."""

    def __init__(
        self,
        call: Document,
        rules: Any,
        source: CallSource,
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
        """Run the call until the proxy has accepted its result (`settled`), or the call is lost. When cancelled, the
        call is returned to the proxy if it may run twice; otherwise an error says that it may have run."""
        began = time.monotonic()
        self._report_event("claimed", args=self._call["args"])
        work = asyncio.ensure_future(self._run())
        renewal = asyncio.ensure_future(self._renew_repeatedly())
        try:
            await asyncio.wait((work, renewal), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                renewal.result()  # raises Refused: this worker has lost the call
            status = await self._post(work.result())
            self.settled = True
            self._report_event("answered", status=status, seconds=round(time.monotonic() - began, 3))
        except (Refused, Unreachable) as error:
            self._report_event("lost", error=str(error))
        except asyncio.CancelledError:
            await self._stop(work)
            raise
        finally:
            renewal.cancel()
            work.cancel()
            await asyncio.wait((renewal,))
            if not renewal.cancelled():
                renewal.exception()  # only the result matters

    async def _renew_repeatedly(self) -> None:
        """Renew the lease until cancelled. Raises Refused if another worker has the call, or it is final."""
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
        """Return the call, or send its result, because the worker stops."""
        work.cancel()
        await asyncio.wait((work,), timeout=1)
        try:
            if work.done() and not work.cancelled():
                await self._result(work.result(), timeout=_STOP_TIMEOUT)
                self._report_event("answered", status="done", seconds=0.0)
            elif self._rules.idempotent or self._rules.redeliver:
                await self.renew(0, timeout=_STOP_TIMEOUT)
                self._report_event("returned")
            else:
                await self._result(json_of({"error": _STOPPED}), timeout=_STOP_TIMEOUT)
                self._report_event("abandoned")
        except (Refused, Unreachable) as error:
            self._report_event("lost", error=str(error))

    async def _run(self) -> bytes:
        """Run the call. Returns the body with its result or error."""
        name, rules = self._call["name"], self._rules

        async def run() -> Any:
            return await self._source.call(name, self._call["args"], call_id=self.call_id)

        def may_retry(error: Exception) -> bool:
            safe = rules.idempotent or not getattr(error, "sent", True)
            return safe and getattr(error, "retryable", False)

        try:
            result = await with_retries(lambda: bounded(run, rules.timeout, name), rules.retries or 0, may_retry)
            return _body_of(result)
        except Exception as error:
            message = str(error) or type(error).__name__
            return json_of({"error": message.encode(errors="replace").decode()})

    async def _post(self, body: bytes) -> str:
        """Send the result, with retries for PATIENCE seconds. Returns the call's new status. Raises Refused,
        Unreachable."""
        delay, deadline = FIRST_DELAY, time.monotonic() + PATIENCE
        while True:
            try:
                return await self._result(body, timeout=30)
            except Unreachable as error:
                if time.monotonic() + delay > deadline:
                    raise Unreachable(f"the result was not accepted within {PATIENCE:g} s: {error}") from None
                await asyncio.sleep(delay)
                delay = min(2 * delay, MAX_DELAY)
            except Refused as error:
                if error.status not in (400, 413, 422) or body.startswith(_ERROR):
                    raise
                body = json_of({"error": f"the result cannot be sent: {error}"})

    async def _result(self, body: bytes, *, timeout: float) -> str:
        answer = await self._api.request("POST", f"/v1/calls/{self.call_id}/result", body, timeout=timeout)
        return str(answer.json()["status"])

    def _report_event(self, event: str, **fields: Any) -> None:
        self._report({"event": event, "call_id": self.call_id, "name": self._call["name"], **fields})
