"""Folders of prompts through the front door: every problem at submit and at plan, the same over gRPC; and the page."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.rpc import error_details_pb2 as details

from api.rpc.v1 import job_service_pb2 as pb
from jobs import folder_use
from ppo_engine.data.prompts import load_prompts
from tests.support.attempts import claimed
from tests.support.errand_desk import desk
from tests.support.grpc_api import message, refusal, stub_at
from tests.support.http_api import App, served_on
from tests.support.hub_folders import cached, json_lines, parquet, write
from tests.support.problem_json import problem
from tests.support.source_tree import ROOT
from tests.support.specs import spec_document
from tests.support.tiny_models import tiny_llama

PAGE = (ROOT / "docs" / "prompts.md").read_text("utf-8")


def spec(*, chat: bool = False, **folder: Any) -> dict[str, Any]:
    prompts: dict[str, Any] = {"folder": folder} | ({"chat": {}} if chat else {})
    return spec_document(model__policy={"path": "tiny"}, prompts=prompts)


@pytest.fixture
def models(sqlite_app: App, home: Path) -> Path:
    """The app's root, with a folder of prompts."""
    write(home / "models" / "set", {"train.jsonl": json_lines("a", "b"), "test.csv": "prompt\nc\n"})
    return home / "models"


def test_a_spec_names_a_folder_wherever_it_takes_texts(sqlite_app: App, models: Path) -> None:
    folder = {"path": "set"}
    document = spec_document(
        model__policy={"path": "tiny"},
        prompts={"folder": folder},
        evaluation={"prompts": {"folder": {**folder, "split": "test"}}},
        ptx={"texts": {"folder": folder}},
        rewards=[{"name": "right", "rule": {"name": "exact"}}],
    )
    response = sqlite_app.post("/v1/jobs", json=document)
    assert response.status_code == 201, response.text
    config = claimed(sqlite_app.context.db, response.json()["id"]).spec.train_config()
    assert config.evaluation is not None
    assert config.ptx is not None
    for prompts, texts in ((config.prompts, "ab"), (config.evaluation.prompts, "c"), (config.ptx.texts, "ab")):
        assert [line.text for line in load_prompts(prompts, [models])] == list(texts)


def broken(models: Path) -> dict[str, Any]:
    """A spec with something wrong in every set, and elsewhere."""
    write(models / "bad", {"train.jsonl": json_lines("fine", "", 7)})
    document = spec(path="bad")
    document["evaluation"] = {"every_steps": 1, "prompts": {"folder": {"path": "set", "split": "tset"}}}
    document["ptx"] = {"texts": {"folder": {"path": "set", "field": "promt"}}}
    document["optimizer"] = {"learning_rate": -1}
    return document


FOUND = [
    ("/optimizer/learning_rate", "out_of_range", "must be greater than 0"),
    ("/prompts/folder/path", "row_unusable", "`train.jsonl` line 2: field `prompt` is empty"),
    ("/prompts/folder/path", "row_unusable", "`train.jsonl` line 3: field `prompt` is not a string"),
    ("/ptx/texts/folder/field", "unknown_column", "there is no column `promt`"),
    ("/evaluation/prompts/folder/split", "unknown_split", "there is no split `tset`"),
]


def seen(errors: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(error["pointer"], error["code"], error["detail"]) for error in errors]


def test_all_problems_are_there_at_submit_and_at_plan(sqlite_app: App, models: Path) -> None:
    document = broken(models)
    planned = sqlite_app.post("/v1/jobs/plan", json=document).json()["errors"]
    assert [(pointer, code) for pointer, code, _ in seen(planned)] == [(pointer, code) for pointer, code, _ in FOUND]
    del document["optimizer"]
    errors = problem(sqlite_app.post("/v1/jobs", json=document), 422, "invalid_spec")["errors"]
    assert seen(errors) == FOUND[1:]
    assert [error.get("suggestion") for error in errors] == [None, None, "prompt", "test"]
    assert errors[2]["allowed"] == ["prompt", "answer"]
    assert sqlite_app.get("/v1/jobs").json()["items"] == []


@pytest.mark.slow
def test_grpc_takes_and_refuses_the_same(sqlite_app: App, models: Path) -> None:
    document = broken(models)
    del document["optimizer"]
    errors = problem(sqlite_app.post("/v1/jobs", json=document), 422, "invalid_spec")["errors"]
    with served_on(sqlite_app.context.db, sqlite_app.context.settings) as served, stub_at(served.grpc) as stub:
        request = pb.CreateJobRequest(spec=message(document))
        found = refusal(lambda: stub.CreateJob(request, timeout=60)).details[details.BadRequest].field_violations
        job = stub.CreateJob(pb.CreateJobRequest(spec=message(spec(path="set", max_rows=1))), timeout=60).job
    same = [(f"spec{pointer.replace('/', '.')}", code, detail) for pointer, code, detail in seen(errors)]
    assert [(item.field, item.reason, item.description.partition("; allowed: ")[0]) for item in found] == same
    shown = sqlite_app.get(f"/v1/jobs/{job.id}").json()["spec"]["prompts"]
    assert shown["folder"] == {"path": "set", "split": "train", "field": "prompt", "max_rows": 1}


def test_the_same_rows_are_read_once_and_others_again(
    sqlite_app: App, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def watched(*given: Any, **options: Any) -> Iterator[Any]:
        read.append(given[0].path)
        return real(*given, **options)

    real = folder_use.read_folder
    monkeypatch.setattr(folder_use, "read_folder", watched)
    for _ in range(2):
        assert sqlite_app.post("/v1/jobs", json=spec(path="set")).status_code == 201
    assert read == ["set"]
    write(models / "set", {"train.jsonl": json_lines("a", "b", 3)})
    errors = problem(sqlite_app.post("/v1/jobs", json=spec(path="set")), 422, "invalid_spec")["errors"]
    assert seen(errors)[0][2] == "`train.jsonl` line 3: field `prompt` is not a string"


def test_a_plan_counts_the_prompts_of_a_folder(sqlite_app: App, models: Path, home: Path) -> None:
    tiny_llama(models / "tiny2")
    cached(models, {"data/train-00000-of-00001.parquet": parquet(prompt=["One", "Two", "One"])})
    (home / "runs").mkdir()
    document = spec(path="datasets--owner--name") | {"model": {"policy": {"path": "tiny2"}}}
    with desk(sqlite_app.context.db, home):
        plan = sqlite_app.post("/v1/jobs/plan", json=document).json()
    assert (plan["ok"], plan["errors"]) == (True, [])
    facts = plan["prompts"]
    assert (facts["count"], facts["usable"], facts["duplicates"]) == (3, 3, 1)


def test_the_examples_of_the_page_can_be_submitted(sqlite_app: App, models: Path) -> None:
    shell, *_ = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    subprocess.run(["sh", "-euc", shell], cwd=models, timeout=60, check=True)
    cached(
        models,
        {
            "README.md": "---\nconfigs:\n- config_name: main\n  data_files: rows.csv\n---\n",
            "rows.csv": "question\nWhy?\n",
        },
    )
    examples = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for example in examples:
        document = spec_document(model__policy={"path": "tiny"}, **json.loads(example))
        assert sqlite_app.post("/v1/jobs", json=document).status_code == 201
    assert len(examples) == 2
