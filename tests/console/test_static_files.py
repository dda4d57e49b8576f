"""The pages' files: vendored ones are what their list says, and nothing needs an exception of the policy."""

import hashlib
import re
from pathlib import Path

import httpx2
import pytest

from addon.console import pages
from addon.console.pages import FILES

FOLDER = Path(pages.__file__).parent
STATIC = FOLDER / "static"
TEMPLATES = sorted((FOLDER / "templates").iterdir())


def test_vendored_files_have_the_checksums_of_their_list() -> None:
    listed = dict(re.findall(r"^\| `([^`]+)` .*\| `([0-9a-f]{64})` \|$", (STATIC / "README.md").read_text(), re.M))
    assert set(listed) == {"htmx.min.js", "hx-sse.min.js"}
    for name, checksum in listed.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == checksum
    assert "Zero-Clause BSD" in (STATIC / "htmx.LICENSE").read_text()


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_no_inline_script_or_style_and_no_address_elsewhere(template: Path) -> None:
    text = template.read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|hx-on|javascript:|js:|\|\s*safe|autoescape", text)
    assert not re.search(r"<script(?! src=\"/console/static/[\w.-]+\"></script>)", text)
    assert not re.search(r"(src|href|action|hx-get|hx-post)=\"(?!/|#|data:image/svg|\{\{ part \}\})", text)


async def test_files_are_served_to_anyone(visitor: httpx2.AsyncClient) -> None:
    for name, kind in FILES.items():
        answer = await visitor.get(f"/console/static/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert answer.content == (STATIC / name).read_bytes()
        assert answer.headers["x-content-type-options"] == "nosniff"
