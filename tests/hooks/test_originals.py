"""What the addon replaces in other packages, and which of their private names it uses."""

import ast
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("mitmproxy", "httpx2", "httpcore2", "uvicorn", "redis", "mcp", "h11", "starlette", "fastapi", "wsproto")

REPLACED = [
    "mitmproxy.addonmanager.AddonManager() trigger_event",  # of one instance, while `graft_fast` is on
    "mitmproxy.addons.serverplayback.ServerPlayback request",
    "mitmproxy.proxy.layers.http.HttpStream handle_protocol_error",
    "mitmproxy.proxy.layers.http.HttpStream make_server_connection",
    "mitmproxy.proxy.layers.http.HttpStream send_response",
    "mitmproxy.proxy.layers.websocket.Fragmentizer FRAGMENT_SIZE",  # which mitmproxy documents as to be set
    "mitmproxy.proxy.layers.websocket.WebsocketLayer relay_messages",
    "mitmproxy.proxy.server.ConnectionHandler wakeup",
    "uvicorn.server.Server handle_exit",  # by sse-starlette
]
RANDOM = "_REQUEST_TELEMETRY_KEY"

LOOK = """
import asyncio, importlib, inspect, json, sys, warnings
warnings.simplefilter("ignore")
names, packages, loads = json.loads(sys.argv[1])
import mitmproxy.proxy.layers, mitmproxy.addonmanager, mitmproxy.options
from mitmproxy.master import Master
from mitmproxy.addons import default_addons, termlog

def described(value):
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        return [described(value.fget), described(value.fset)]
    code = getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None
    if code is not None:
        return code.co_filename, code.co_name, code.co_firstlineno
    if isinstance(value, (int, float, str, bytes, bool, type(None))):
        return repr(value)
    return type(value).__qualname__, getattr(value, "__qualname__", "")

def owners():
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in packages and module is not None:
            yield name, module
            for found in list(vars(module).values()):
                if inspect.isclass(found) and found.__module__ == name:
                    yield f"{name}.{found.__qualname__}", found

async def main():
    manager = None
    if loads:
        from addon.hooks.compose import build_addons
        master = Master(mitmproxy.options.Options(), with_termlog=False)
        master.addons.add(*default_addons(), *build_addons())
        master.options.update(graft_store="memory://", graft_control="off", graft_fast="on", graft_state=sys.argv[2])
        manager = vars(master.addons)
    for name in names:
        importlib.import_module(name)
    seen = {
        f"{name} {attribute}": described(value)
        for name, owner in owners()
        for attribute, value in list(vars(owner).items())
        if not attribute.startswith("__") or attribute in ("__init__", "__new__", "__call__")
    }
    for attribute, value in (manager or {}).items():
        if callable(value):
            seen[f"mitmproxy.addonmanager.AddonManager() {attribute}"] = "of an instance"
    print(json.dumps([[name for name in sys.modules if name.partition(".")[0] in packages], seen]))

asyncio.run(main())
"""


def look(folder: Path, names: list[str], *, loads: bool) -> tuple[list[str], dict[str, object]]:
    """The modules of the packages that a new interpreter has imported, and what each of their attributes is."""
    words = [sys.executable, "-c", LOOK, json.dumps([names, PACKAGES, loads]), str(folder / "state")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    modules, values = json.loads(done.stdout.splitlines()[-1])
    return modules, values


def test_nothing_else_of_other_packages_is_replaced(tmp_path: Path) -> None:
    modules, values = look(tmp_path, [], loads=True)
    assert len(modules) > 300
    _, originals = look(tmp_path, modules, loads=False)
    assert len(originals) > 10_000
    changed = {name for name, value in values.items() if name in originals and originals[name] != value}
    new = {name for name in values.keys() - originals.keys() if not name.startswith("mitmproxy.ctx ")}
    assert sorted(name for name in changed | new if not name.endswith(RANDOM)) == REPLACED


PRIVATE = {
    "_SHUTTING_DOWN": "of Python's `threading`: whether the process ends has no public name",
    "mcp.client._transport": "for the type checker only",
    "mitmproxy.proxy.layers.http._base": "the command with which a connection gives events to the HTTP layer",
    "mitmproxy.proxy.layers.http._events": "those events, which the HTTP layer and its streams exchange",
}
DOCUMENTED = {"os._exit", "_asdict", "_replace"}


def test_private_names_of_other_packages_are_not_used() -> None:
    """A name is the project's own if the project defines it anywhere."""
    files = [path for folder in ("addon", "store") for path in (ROOT / folder).rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    own = {name for node in nodes for name in _defined(node)}
    used = {name for node in nodes for name in _private(node)}
    assert used - own - DOCUMENTED == PRIVATE.keys()


def _defined(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
            return [name]
    return []


def _private(node: ast.AST) -> list[str]:
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr=name) if _is_private(name):
            return [f"os.{name}"]
        case ast.Attribute(attr=name) if _is_private(name):
            return [name]
        case ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]):
            return [name] if _is_private(name) else []
        case ast.ImportFrom(module=str(module), level=0) if not module.startswith(("addon", "store", "toolgraft")):
            names = [f"{module}.{one.name}" for one in node.names if _is_private(one.name)]
            return names + [module for part in module.split(".") if _is_private(part)]
        case ast.Import():
            return [one.name for one in node.names if any(map(_is_private, one.name.split(".")))]
    return []


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
