"""The client's datasets, and the commands for them, against the real front door."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.auth import LOCAL
from jobs.db import Database
from ppo_client import cli
from ppo_client.client import PPOClient
from ppo_client.commands.exits import Exit
from ppo_client.datasets import UnusableFile
from ppo_client.errors import Conflict, InvalidRequest
from ppo_client.transport import RetryPolicy
from tests.support.attempts import submitted
from tests.support.client_values import START
from tests.support.http_api import Served, served_on, settings
from tests.support.scripted_http import json_reply, problem, serve

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def doors(sqlite_url: str, tmp_path: Path) -> Iterator[Served]:
    db = Database(sqlite_url)
    with served_on(db, settings(tmp_path, sqlite_url, http_port=0, grpc_port=0)) as running:
        yield running
    db.dispose()


@pytest.fixture
def films(tmp_path: Path) -> Path:
    path = tmp_path / "films.jsonl"
    path.write_text('{"prompt": "The movie was", "n": 1}\n{"prompt": "My dinner at", "n": 2}\n')
    return path


@pytest.fixture
def ppo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], doors: Served) -> Command:
    monkeypatch.setenv("PPO_URL", doors.http)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ppo", "datasets", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        return int(caught.value.code or 0), captured.out, captured.err

    return run


def test_a_dataset_from_file_to_deletion(doors: Served, films: Path, tmp_path: Path):
    with PPOClient(doors.http) as client:
        dataset = client.add_dataset(films)
        assert (dataset.name, dataset.rows, dataset.size_bytes) == ("films.jsonl", 2, films.stat().st_size)
        assert client.add_dataset(films, name="again") == dataset
        others = [tmp_path / f"{n}.csv" for n in range(3)]
        for n, path in enumerate(others):
            path.write_text(f"prompt\n{n}\n")
        ids = [client.add_dataset(path).id for path in others]
        assert [found.id for found in client.datasets(page_size=2)] == [*ids[::-1], dataset.id]
        assert client.dataset(dataset.id).preview[1] == {"prompt": "My dinner at", "n": 2}
        submitted(doors.context.db, LOCAL, prompts={"dataset": {"id": dataset.id}})
        with pytest.raises(Conflict, match="not ended need it"):
            client.delete_dataset(dataset.id)
        client.delete_dataset(ids[0])
        assert ids[0] not in [found.id for found in client.datasets()]


def test_bad_rows_are_told(doors: Served, tmp_path: Path):
    (tmp_path / "bad.csv").write_text("a,b\n1\n")
    with PPOClient(doors.http) as client:
        with pytest.raises(InvalidRequest) as caught:
            client.add_dataset(tmp_path / "bad.csv")
        assert caught.value.problems[0].pointer == "/rows/1"
        with pytest.raises(UnusableFile, match="must end with"):
            client.add_dataset(tmp_path / "x.txt")
        with pytest.raises(UnusableFile, match="cannot read"):
            client.add_dataset(tmp_path / "none.csv")


def test_a_retry_sends_the_whole_file_again(films: Path):
    view = {
        "id": "ds_1", "name": "x", "format": "jsonl", "rows": 2, "columns": [], "size_bytes": 1, "sha256": "0",
        "create_time": START.isoformat(), "links": {},
    }  # fmt: skip
    away = problem(503, detail="away")
    with serve([away, json_reply(view, 201)]) as server:
        with PPOClient(server.url, retry=RetryPolicy(first_wait_seconds=0.01)) as client:
            assert client.add_dataset(films).id == "ds_1"
        assert [asked.body for asked in server.asked] == [films.read_bytes()] * 2
        assert server.asked[1].headers["Content-Type"] == "application/jsonl"


def test_the_commands(ppo: Command, films: Path):
    code, out, _ = ppo("add", str(films), "--name", "my [films]")
    assert code == Exit.DONE
    assert '"field": "prompt"' in out
    (dataset,) = json.loads(ppo("ls", "--json")[1].splitlines()[-1])  # the door here logs to the same place
    assert dataset["id"] in out
    assert "my [films]" in ppo("ls")[1]
    code, out, _ = ppo("show", dataset["id"])
    assert "The movie was" in out
    assert "no: row 1" in out
    assert ppo("rm", dataset["id"])[0] == Exit.DONE
    assert ppo("ls")[1].endswith("no datasets\n")
    code, _, err = ppo("show", dataset["id"])
    assert code == Exit.REFUSED
    assert "there is no such dataset" in err
    films.with_suffix(".csv").write_text("a,b\n1\n")
    code, _, err = ppo("add", str(films.with_suffix(".csv")))
    assert code == Exit.INVALID
    assert "/rows/1: line 2: has 1 cells where the header has 2" in err
