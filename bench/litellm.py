"""LiteLLM's proxy, the newest on PyPI, against mitmdump with the addon: same upstream, same requests, one process each.

LiteLLM gets an environment of its own in the user's cache folder. Where it cannot be installed, one row says so.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

from bench.measure import CLIENTS, Effort, Pair, compare, main
from bench.processes import Process, Side, free_port, grafted, upstream
from bench.proxy import TEXT_2K, TOOLSET
from bench.report import Row, at_least

_STREAMS = 64
_ASKED = b"travel planning. Answer in 60 events, 20 ms apart"
_STREAMED = dataclasses.replace(TEXT_2K, template=TEXT_2K.template.replace(b"travel planning", _ASKED))
_MODEL = "gemini-3-flash-preview"
_STREAM = f"/v1beta/models/{_MODEL}:streamGenerateContent?alt=sse"


async def table(effort: Effort) -> list[Row]:
    try:
        version = _install()
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "stderr", "") or str(error)
        return [Row("LiteLLM's proxy", "", "not measured", None, f"it could not be installed: {why.splitlines()[-1]}")]
    fewer = dataclasses.replace(effort, rounds=max(1, effort.rounds // 2))
    with upstream() as port, _litellm(port) as one, grafted(port) as other:
        sides = (one, other)
        other.api("PUT", "/v1/sessions/default/tools", TOOLSET)
        single = await compare(effort, sides, TEXT_2K, clients=1)
        many = await compare(effort, sides, TEXT_2K)
        streams = await compare(fewer, sides, _STREAMED, clients=_STREAMS, path=_STREAM, streams=True, spread=0.3)
    name = f"LiteLLM {version}"
    return [
        at_least(f"requests a second against {name}: one client", 18, single.rate, single.rates),
        at_least(f"requests a second against {name}: {CLIENTS} clients", 18, many.rate, many.rates),
        at_least(f"p50 of {name} against the proxy's, one client", 18, _times(single), single.latencies),
        at_least(
            f"first byte of {name} against the proxy's, {_STREAMS} streams", 40, _times(streams), streams.latencies
        ),
    ]


def _times(pair: Pair) -> float:
    return pair.median(lambda r: r.bare.p50 / r.grafted.p50)


def _folder() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "toolgraft-bench" / "litellm"


def _install() -> str:
    """The version that is installed now. Without a network it is the one of an earlier run, if there was one."""
    python = _folder() / "bin" / "python"
    if not python.exists():
        venv.create(_folder(), with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--upgrade", "litellm[proxy]"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if ran.returncode and not (_folder() / "bin" / "litellm").exists():
        ran.check_returncode()
    ask = "from importlib.metadata import version; print(version('litellm'))"
    return subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def _litellm(upstream: int) -> Iterator[Side]:
    """LiteLLM as `mitmdump -q` is: without a key, a database and a line for each request."""
    parameters = {"model": f"gemini/{_MODEL}", "api_base": f"http://127.0.0.1:{upstream}", "api_key": "not-a-key"}
    config = {
        "model_list": [{"model_name": _MODEL, "litellm_params": parameters}],
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    }
    with tempfile.TemporaryDirectory() as folder:
        home, port = Path(folder), free_port()
        (home / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        (home / "logging.json").write_text(json.dumps({"version": 1, "root": {"level": "ERROR"}}))
        command = [str(_folder() / "bin" / "litellm"), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--config", str(home / "config.yaml"), "--log_config", str(home / "logging.json")]
        command += ["--keepalive_timeout", "600"]  # connections are kept from round to round
        environ = {"PYTHONPATH": "", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
        process = Process.start(port, command, proxy=True, home=home, patience=180, environ=environ)
        try:
            yield Side(process)
        finally:
            process.stop()


if __name__ == "__main__":
    sys.exit(main(__doc__, [("litellm", table)]))
