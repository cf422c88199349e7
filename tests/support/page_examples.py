"""The examples of docs/api as programs: what a reader would paste into a shell and into Python."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from docs.api_pages import GRPC_ADDRESS
from docs.twins import TWINS
from tests.support.source_tree import ROOT

_SECTION = re.compile(r"^## (\w+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CURL = 'curl() { command curl -sS --max-time 120 -o "$ANSWER" -w "%{http_code}" -H "$AUTHORIZATION" "$@"; }\n'
_PREAMBLE = """\
import base64, grpc, json

class Keyed(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamUnaryClientInterceptor):
    def give(self, proceed, details, request):
        return proceed(details._replace(metadata=[("authorization", f"Bearer {SERVICE_KEY}")]), request)
    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = give

def keyed_channel(address):
    return grpc.intercept_channel(grpc.insecure_channel(address), Keyed())

answers = {}
def print(answer):
    answers.setdefault(operation, []).append(base64.b64encode(answer.SerializeToString()).decode())
"""


@dataclass(frozen=True)
class Page:
    """One page's blocks: how it begins, and both examples of every operation."""

    setup: str
    curl: dict[str, str]
    python: dict[str, str]


def pages() -> list[Page]:
    """Every page with operations."""
    found = [_page(path.read_text("utf-8")) for path in sorted((ROOT / "docs/api").glob("*.md"))]
    return [page for page in found if page.curl]


def _page(text: str) -> Page:
    head, *parts = _SECTION.split(text)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    blocks = {name: dict(_BLOCK.findall(section)) for name, section in sections.items() if name in TWINS}
    return Page(
        dict(_BLOCK.findall(head)).get("python", ""),
        {name: found["sh"] for name, found in blocks.items()},
        {name: found["python"] for name, found in blocks.items() if "python" in found},
    )


@dataclass(frozen=True)
class Answer:
    """What curl got."""

    status: int
    body: bytes


def curl(block: str, values: dict[str, str], folder: Path) -> Answer:
    """Run one example in a shell that has `values`."""
    answer = folder / "answer"
    answer.write_bytes(b"")
    env = {**os.environ, **values, "ANSWER": str(answer), "LC_ALL": "C.UTF-8"}
    ended = subprocess.run(
        ["bash", "-euc", _CURL + block], env=env, capture_output=True, text=True, timeout=150, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return Answer(int(ended.stdout), answer.read_bytes())


def python(values: dict[str, dict[str, str]], grpc_address: str, key: str, folder: Path) -> dict[str, list[bytes]]:
    """Run every Python example in one process; what each has printed, as messages on the wire."""
    lines = [_PREAMBLE, f"SERVICE_KEY = {key!r}\n"]
    lines += [
        page.setup.replace(GRPC_ADDRESS, grpc_address).replace("grpc.insecure_channel", "keyed_channel")
        for page in pages()
    ]
    blocks = {name: block for page in pages() for name, block in page.python.items()}
    for name in filter(blocks.get, TWINS):
        given = "".join(f"{key} = {int(v) if v.isdecimal() else v!r}\n" for key, v in values[name].items())
        lines.append(f"operation = {name!r}\n{given}{blocks[name]}")
    program, found = folder / "examples.py", folder / "answers.json"
    program.write_text("\n".join([*lines, f"open({str(found)!r}, 'w').write(json.dumps(answers))\n"]))
    ended = subprocess.run(
        [sys.executable, program], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return {name: [base64.b64decode(one) for one in many] for name, many in json.loads(found.read_text()).items()}
