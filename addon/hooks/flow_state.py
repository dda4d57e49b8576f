"""Keeps state of the hooks on each flow, for the flow's lifetime."""

from mitmproxy import http


class FlowState[T]:
    """A typed attribute of flows. Each module declares its own.

    The value is stored on the flow, because a look-up costs a tenth of that in a WeakKeyDictionary. Copies of a flow,
    and flows in a file, do not have it."""

    def __init__(self, name: str) -> None:
        self._name = f"_toolgraft_{name}"

    def get(self, flow: http.HTTPFlow) -> T | None:
        found: T | None = flow.__dict__.get(self._name)
        return found

    def pop(self, flow: http.HTTPFlow) -> T | None:
        found: T | None = flow.__dict__.pop(self._name, None)
        return found

    def __getitem__(self, flow: http.HTTPFlow) -> T:
        found: T = flow.__dict__[self._name]
        return found

    def __setitem__(self, flow: http.HTTPFlow, value: T) -> None:
        flow.__dict__[self._name] = value

    def __delitem__(self, flow: http.HTTPFlow) -> None:
        del flow.__dict__[self._name]

    def __contains__(self, flow: http.HTTPFlow) -> bool:
        return self._name in flow.__dict__
