"""`python -m ppo_engine wait`: the process that becomes a run, and its ways to leave without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ppo_engine.events import Phase, PhaseEntered, parse
from ppo_engine.program.spare import STALE_EXIT
from ppo_engine.rundir import RunDir
from tests.support.servers import wait_until
from tests.support.tiny_models import tiny_llama

pytestmark = pytest.mark.slow

SPEC = {
    "model": {"policy": {"path": "policy"}},
    "prompts": {"inline": ["The movie was", "My dinner", "It"]},
    "rewards": [{"name": "mood", "rule": {"name": "sentiment"}}],
    "generation": {"max_new_tokens": 8},
    "ppo": {"steps": 2, "batch_size": 4, "minibatch_size": 2, "ppo_epochs": 1},
}


def start(*words: str, **env: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ppo_engine", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(os.environ) | env)


def finish(process: subprocess.Popen[bytes], line: bytes = b"") -> tuple[int, bytes, str]:
    """Its exit code and output, after a line to its standard input and while that stays open."""
    if process.stdin is not None and line:
        process.stdin.write(line)
        process.stdin.flush()
    process.wait(120)
    out, err = process.communicate()
    return process.returncode, out, err.decode()


def arguments(root: Path, out: Path, spec: Mapping[str, Any] = SPEC) -> Sequence[str]:
    out.mkdir()
    (out / "wanted.json").write_text(json.dumps(spec))
    return [str(out / "wanted.json"), "--out", str(out), "--root", str(root), "--threads", "1"]


def test_it_does_exactly_what_run_does(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "policy")
    ran, waited = tmp_path / "ran", tmp_path / "waited"
    runs = start("run", *arguments(tmp_path, ran), OMP_NUM_THREADS="1")
    assert finish(runs)[0] == 0
    # Started for two threads, used for one: the number that decides is the one of the run.
    waits = start("wait", OMP_NUM_THREADS="2")
    line = json.dumps(["run", *arguments(tmp_path, waited)]).encode() + b"\n"
    code, out, err = finish(waits, line)
    assert code == 0, err
    first, *_ = events = [parse(line) for line in out.splitlines()]
    assert isinstance(first, PhaseEntered)
    assert first.phase is Phase.LOADING
    assert len(events) > 5
    assert "step 2/2" in err
    one, other = (RunDir(folder).checkpoint(2, 1) for folder in (ran, waited))
    for part in ("model/model.safetensors", "value.safetensors", "optimizer.safetensors", "rng.safetensors"):
        assert (one / part).read_bytes() == (other / part).read_bytes(), part


def test_it_does_not_begin_with_code_that_has_changed_since(tmp_path: Path) -> None:
    module = tmp_path / "sitecustomize.py"
    module.write_text("version = 1\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH"), str(Path(__file__).parents[3])]))
    process = start("wait", PYTHONPATH=path)
    wait_until(lambda: "waits" in name_of(process) or process.poll() is not None, 120, lambda: "it is not ready")
    module.write_text("version = 'two'\n")
    assert finish(process, b'["spec.json", "--out", "nowhere"]\n') == (STALE_EXIT, b"", "")


def name_of(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/comm").read_text()


def test_it_leaves_with_its_supervisor_even_while_it_imports() -> None:
    process = start("wait")
    wait_until(lambda: "ppo-imports" in name_of(process), 60, lambda: "it does not start")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(10) == 0
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
