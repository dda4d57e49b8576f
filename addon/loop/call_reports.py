"""Log lines about calls that failed, or that a person must answer or approve."""

import logging

from addon.core.answer import CapturedCall
from addon.core.summaries import arguments, problem, shortened

logger = logging.getLogger("toolgraft")

_LONGEST_NAME = 64
_LONGEST_ERROR = 300


def report_failure(session: str, call: CapturedCall, error: str) -> None:
    name, why = shortened(call.name, _LONGEST_NAME), shortened(error, _LONGEST_ERROR)
    logger.warning(
        "session %s: %s failed: %s",
        session,
        name,
        why,
        extra=problem("tool_failed", session=session, call=call.call_id, tool=name, error=why),
    )


def report_waiting(session: str, call: CapturedCall, *, needs_approval: bool) -> None:
    """Log the command that answers or approves the call."""
    name, args = shortened(call.name, _LONGEST_NAME), arguments(call.args)
    what, command = ("an approval", "approve {}") if needs_approval else ("its result", "answer {}")
    command = f"toolgraft {command.format(call.call_id)}"
    logger.warning(
        "session %s: %s(%s) waits for %s: %s",
        session,
        name,
        args,
        what,
        command,
        extra=problem(
            "approval_needed" if needs_approval else "result_needed",
            session=session,
            call=call.call_id,
            tool=name,
            arguments=args,
            command=command,
        ),
    )
