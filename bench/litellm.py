"""LiteLLM's proxy, the newest on PyPI, against mitmdump with the addon: same upstream, same requests, one process each.

LiteLLM gets a separate environment in the user's cache folder. If it cannot be installed, one row says so.
"""

import contextlib
import json
import os
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

from bench.measure import CLIENTS, Effort, compare
from bench.processes import Process, Side, free_port, grafted, upstream
from bench.proxy import TEXT_2K, TOOLSET
from bench.report import Row, at_least

_MODEL = "gemini-3-flash-preview"


async def table(effort: Effort) -> list[Row]:
    try:
        version = _install()
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "stderr", "") or str(error)
        return [Row("LiteLLM's proxy", "", "not measured", None, f"it could not be installed: {why.splitlines()[-1]}")]
    with upstream() as port, _litellm(port) as one, grafted(port) as other:
        other.api("PUT", "/v1/sessions/default/tools", TOOLSET)
        pair = await compare(effort, (one, other), TEXT_2K)
    what = f"requests a second against LiteLLM {version}: {CLIENTS} clients"
    return [at_least(what, 12, pair.rate, pair.rates)]


def _folder() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "toolgraft-bench" / "litellm"


def _install() -> str:
    """Install LiteLLM, and return its version: without a network, that of an earlier run."""
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
    """LiteLLM, set up like `mitmdump -q`: without a key, a database and a line for each request."""
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
