"""The committed stubs are those of the committed proto, and the proto follows the rules of its trade."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = sysconfig.get_path("scripts")
OUTPUTS = ("--python_out", "--grpc_python_out", "--mypy_out", "--mypy_grpc_out")


def run(*command: str, **variables: str) -> None:
    env = {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}", **variables}
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_the_stubs_are_fresh(tmp_path: Path):
    outputs = [f"{option}={tmp_path}" for option in OUTPUTS]
    sources = [f"api/rpc/v1/{path.name}" for path in (ROOT / "proto/ppo/v1").glob("*.proto")]
    run(sys.executable, "-m", "grpc_tools.protoc", "-Iapi/rpc/v1=proto/ppo/v1", *outputs, *sources)
    fresh = {path.name: path.read_text() for path in (tmp_path / "api/rpc/v1").iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / "api/rpc/v1").glob("*_pb2*")}
    assert fresh == committed


def test_the_proto_passes_buf_lint(tmp_path: Path):
    buf = shutil.which("buf", path=SCRIPTS)
    assert buf, "the package buf-bin is not installed"
    run(buf, "lint", "proto", BUF_CACHE_DIR=str(tmp_path))  # not in the user's home
