"""The arrows between rooms: import-linter's contracts, and what importing a room really loads."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.source_tree import FACE, ROOT, sources

HEAVY = ("torch", "transformers", "accelerate", "numpy")
LISTING = "import sys, importlib; [importlib.import_module(m) for m in sys.argv[1:]]; print('\\n'.join(sys.modules))"


def modules_of(*rooms: str) -> list[str]:
    """Importable modules; `__main__` runs its program."""
    paths = [source.path.removesuffix(".py").removesuffix("/__init__") for source in sources(rooms)]
    return [path.replace("/", ".") for path in paths if not path.endswith("__main__")]


def loaded_by(modules: list[str]) -> set[str]:
    """Names in sys.modules of a fresh interpreter that imported `modules`."""
    command = [sys.executable, "-c", LISTING, *modules]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def linted(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on the contracts of a folder. As a process: in this one it would switch all other loggers off."""
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports as l; raise SystemExit(l(no_cache=True))"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_contracts_hold():
    done = linted(ROOT)
    assert done.returncode == 0, done.stdout


def test_contracts_notice_a_planted_import(tmp_path, monkeypatch):
    """The domain contract of pyproject.toml, on a package of the same names with one forbidden import."""
    for room in ("api", "worker", "ppo_client", "jobs", "ppo_engine"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("")
    (tmp_path / "jobs" / "service.py").write_text("import celery\n")
    contract = (
        '[tool.importlinter]\nroot_packages = ["jobs"]\ninclude_external_packages = true\n'
        '[[tool.importlinter.contracts]]\nname = "domain"\ntype = "forbidden"\n'
        'source_modules = ["jobs"]\nforbidden_modules = ["celery"]\n'
    )
    (tmp_path / "pyproject.toml").write_text(contract)
    done = linted(tmp_path)
    assert done.returncode != 0
    assert "jobs.service -> celery" in done.stdout


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (modules_of("api"), (*HEAVY, "celery", "kombu", "redis")),
        (modules_of("worker"), (*HEAVY, "fastapi", "grpc")),
        (modules_of("jobs"), (*HEAVY, "fastapi", "grpc", "celery", "httpx", "prometheus_client")),
        (modules_of("ppo_client"), (*HEAVY, "sqlalchemy", "fastapi", "grpc", "celery")),
        ([f"ppo_engine.{name}" for name in sorted(FACE)], (*HEAVY, "sqlalchemy", "celery")),
    ],
    ids=["api", "worker", "jobs", "ppo_client", "face"],
)
@pytest.mark.slow
def test_importing_a_room_loads_nothing_behind_a_wall(modules, absent):
    assert modules
    # Of a module that another test has loaded, find_spec wants a __spec__, and kombu's has none.
    assert all(name in sys.modules or find_spec(name) for name in absent), "a missing package proves nothing"
    assert loaded_by(modules) & set(absent) == set()


@pytest.mark.slow
def test_what_stands_behind_the_wall_is_noticed():
    """The mathematics of the engine does load torch: the test above can fail."""
    assert "torch" in loaded_by(["ppo_engine.maths.kl"])


def test_the_command_starts_without_what_few_of_its_commands_need():
    assert {"jsonschema", "matplotlib", "sqlalchemy", "grpc", "pyarrow"}.isdisjoint(loaded_by(["ppo_client.cli"]))
