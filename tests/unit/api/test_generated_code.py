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
    ended = ended_run(*command, **variables)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def ended_run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}", **variables}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_the_stubs_are_fresh(tmp_path: Path):
    outputs = [f"{option}={tmp_path}" for option in OUTPUTS]
    sources = [f"api/rpc/v1/{path.name}" for path in (ROOT / "proto/ppo/v1").glob("*.proto")]
    run(sys.executable, "-m", "grpc_tools.protoc", "-Iapi/rpc/v1=proto/ppo/v1", *outputs, *sources)
    fresh = {path.name: path.read_text() for path in (tmp_path / "api/rpc/v1").iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / "api/rpc/v1").glob("*_pb2*")}
    assert fresh == committed


@pytest.fixture
def buf() -> str:
    found = shutil.which("buf", path=SCRIPTS)
    assert found, "the package buf-bin is not installed"
    return found


def test_the_proto_passes_buf_lint(buf: str, tmp_path: Path):
    run(buf, "lint", "proto", BUF_CACHE_DIR=str(tmp_path))  # not in the user's home


def test_the_proto_only_grows(buf: str, tmp_path: Path):
    run(buf, "breaking", "proto", "--against", "proto/baseline.txtpb", BUF_CACHE_DIR=str(tmp_path))


def test_what_would_break_clients_is_noticed(buf: str, tmp_path: Path):
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    file = tmp_path / "proto/ppo/v1/job_service.proto"
    text = file.read_text()
    for gone in ("  rpc GetJob(GetJobRequest) returns (GetJobResponse);\n", "  string spec_hash = 8;\n"):
        assert gone in text
        text = text.replace(gone, "")
    file.write_text(text)
    baseline = str(ROOT / "proto/baseline.txtpb")
    broken = ended_run(buf, "breaking", str(tmp_path / "proto"), "--against", baseline, BUF_CACHE_DIR=str(tmp_path))
    assert broken.returncode != 0
    assert "GetJob" in broken.stdout
    assert "spec_hash" in broken.stdout
