"""Datasets over HTTP: uploaded, checked row by row, named in specs, kept while a job needs them."""

from __future__ import annotations

import hashlib
import io
import json
import resource
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import parquet

from jobs import lifecycle
from jobs.auth import LOCAL, Principal, create_key
from jobs.service import cancel, submit
from ppo_engine.data.prompts import load_prompts
from ppo_engine.datasets import parquet_program
from tests.support.attempts import claimed, submitted
from tests.support.http_api import PEPPER, App, app_on, settings
from tests.support.problem_json import pointers, problem
from tests.support.specs import make_spec, spec_document

JSONL = {"Content-Type": "application/jsonl"}
PARQUET = {"Content-Type": "application/x-parquet"}
CSV = {"Content-Type": "text/csv"}
LINES = b'{"prompt": "The movie was", "answer": "good"}\n\n{"prompt": "My dinner at \xc3\xa9", "answer": 2}\n'


def upload(app: App, content: bytes = LINES, headers: dict[str, str] = JSONL, **params: str) -> httpx.Response:
    return app.post("/v1/datasets", content=content, headers=headers, params=params)


def uploaded(app: App, content: bytes = LINES, headers: dict[str, str] = JSONL, **params: str) -> dict[str, Any]:
    response = upload(app, content, headers, **params)
    assert response.status_code == 201, response.text
    document: dict[str, Any] = response.json()
    return document


def stored(app: App, dataset: dict[str, Any]) -> list[dict[str, Any]]:
    text = (app.context.settings.datasets_dir / f"{dataset['id']}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def names(app: App) -> set[str]:
    folder = app.context.settings.datasets_dir
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def parquet_file(**columns: list[Any]) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def test_json_lines_come_back_with_columns_and_first_rows(app: App):
    response = upload(app, name="films")
    assert response.status_code == 201
    dataset = response.json()
    assert response.headers["location"] == f"/v1/datasets/{dataset['id']}"
    assert (dataset["name"], dataset["format"], dataset["rows"]) == ("films", "jsonl", 2)
    assert (dataset["size_bytes"], dataset["sha256"]) == (len(LINES), hashlib.sha256(LINES).hexdigest())
    prompt, answer = dataset["columns"]
    assert (prompt["name"], prompt["kinds"], prompt["rows"], prompt["longest_characters"]) == (
        "prompt",
        ["text"],
        2,
        14,
    )
    assert prompt["first_row_not_text"] is None
    assert (answer["kinds"], answer["first_row_not_text"]) == (["number", "text"], 2)
    shown = app.get(response.headers["location"]).json()
    assert shown["preview"] == stored(app, dataset)
    assert shown["preview"][1] == {"prompt": "My dinner at é", "answer": 2}
    assert names(app) == {f"{dataset['id']}.jsonl"}


def test_csv_becomes_json_lines(sqlite_app: App):
    table = '\ufeffprompt,answer\r\n"one, ""two""\nthree",4\r\nfive,\r\n'.encode()
    dataset = uploaded(sqlite_app, table, CSV)
    assert stored(sqlite_app, dataset) == [
        {"prompt": 'one, "two"\nthree', "answer": "4"},
        {"prompt": "five", "answer": ""},
    ]


def test_parquet_becomes_json_lines(sqlite_app: App):
    chats = [[{"role": "user", "content": "hi"}], [{"role": "user", "content": "ho"}]]
    table = parquet_file(prompt=["a", "b"], n=[1, None], day=[date(2026, 1, 2), None], chat=chats)
    dataset = uploaded(sqlite_app, table, {"Content-Type": "application/vnd.apache.parquet"})
    assert stored(sqlite_app, dataset)[0] == {"prompt": "a", "n": 1, "day": "2026-01-02", "chat": chats[0]}
    columns = {column["name"]: column for column in dataset["columns"]}
    assert columns["chat"]["first_row_not_chat"] is None
    assert columns["chat"]["first_row_not_text"] == 1
    assert columns["n"]["kinds"] == ["null", "number"]


def test_a_form_says_name_and_format_by_its_file(sqlite_app: App):
    response = sqlite_app.post("/v1/datasets", files={"file": ("rows.csv", b"prompt\nhello\n", "text/csv")})
    assert (response.status_code, response.json()["name"]) == (201, "rows.csv")
    octets = {"file": ("rows.jsonl", LINES, "application/octet-stream")}
    other = sqlite_app.post("/v1/datasets", files=octets, params={"name": "mine"}).json()
    assert (other["name"], other["format"]) == ("mine", "jsonl")


def test_the_same_file_makes_one_dataset(app: App):
    first = uploaded(app)
    again = upload(app, name="another name")
    assert (again.status_code, again.json()) == (200, first)
    assert uploaded(app, LINES + b"\n")["id"] != first["id"]
    assert len(names(app)) == 2


@pytest.mark.parametrize(
    ("content", "headers", "where"),
    [
        (b'{"a": "x"}\n{"a": \n[1]\n', JSONL, {"/rows/2": "unreadable", "/rows/3": "not_an_object"}),
        (b'{"a": NaN}\n{"a": 1, "a": 2}\n', JSONL, {"/rows/1": "unreadable", "/rows/2": "unreadable"}),
        (b'{"a": "\xff"}\n{"b": "\\u0000"}\n', JSONL, {"/rows/1": "unreadable", "/rows/2/b": "bad_character"}),
        (b'{"a": "\\ud800", "": 1}', JSONL, {"/rows/1/a": "bad_character", "/rows/1/": "bad_name"}),
        (b'{"a":' * 3000, JSONL, {"/rows/1": "unreadable"}),
        (b'{"a": "' + b"x" * (1 << 20) + b'"}', JSONL, {"/rows/1": "unreadable"}),
        (b"", JSONL, {}),
        (b"\n \n", JSONL, {}),
        (b"a,b\n1,2\n3\n", CSV, {"/rows/2": "unreadable"}),
        (b"a,a\n1,2\n", CSV, {"/rows/1": "unreadable"}),
        (b'a\n"never closed\n', CSV, {"/rows/1": "unreadable"}),
        (b'a\n"' + b"x\n" * (1 << 20), CSV, {"/rows/1": "unreadable"}),
        (b"a\nb\xff\n", CSV, {"/rows/1": "unreadable"}),
        (b"a,b\n", CSV, {}),
        (b"PAR1 no parquet", {"Content-Type": "application/x-parquet"}, {"/rows/1": "unreadable"}),
        (parquet_file(a=[float("nan")]), {"Content-Type": "application/x-parquet"}, {"/rows/1/a": "not_finite"}),
        (parquet_file(a=[b"x"]), {"Content-Type": "application/x-parquet"}, {"/rows/1": "unreadable"}),
    ],
)
def test_bad_rows_are_named_and_nothing_is_kept(refusing: App, content: bytes, headers: dict[str, str], where: Any):
    assert pointers(problem(upload(refusing, content, headers), 422, "invalid_dataset")) == where
    assert names(refusing) == set()


def test_a_parquet_file_that_unpacks_without_end_costs_the_front_door_nothing(refusing: App):
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), ["x" * (20 << 20)])
    buffer = io.BytesIO()
    parquet.write_table(pa.table({"prompt": shared}), buffer, compression="zstd")
    assert len(buffer.getvalue()) < 20_000  # it stands for 1.3 GB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    body = problem(upload(refusing, buffer.getvalue(), PARQUET), 422, "invalid_dataset")
    assert "of memory to read" in body["detail"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_rows_of_a_parquet_reader_that_was_killed_are_no_dataset(
    refusing: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "program.py"
    program.write_text('import os\nprint(\'{"values": {"a": "x"}}\', flush=True)\nos.kill(os.getpid(), 9)\n')
    monkeypatch.setattr(parquet_program, "__file__", str(program))
    body = problem(upload(refusing, parquet_file(a=["x"]), PARQUET), 422, "invalid_dataset")
    assert pointers(body) == {"/rows/2": "unreadable"}


def test_a_problem_says_the_line_of_the_file(refusing: App):
    document = problem(upload(refusing, b'{"a": 1}\n\n\n{"a": }\n'), 422, "invalid_dataset")
    assert pointers(document) == {"/rows/2": "unreadable"}
    assert document["errors"][0]["detail"].startswith("line 4: not JSON")


def test_unusable_uploads_are_refused(refusing: App):
    problem(upload(refusing, headers={"Content-Type": "image/png"}), 415, "unsupported_media_type")
    problem(upload(refusing, headers={**JSONL, "Content-Encoding": "gzip"}), 415, "unsupported_media_type")
    problem(upload(refusing, nme="x"), 400, "invalid_argument")
    problem(upload(refusing, name="a\x00b"), 400, "invalid_argument")
    forms: list[tuple[bytes, str]] = [
        (b"", "multipart/form-data"),
        (b"--b\r\n", "multipart/form-data; boundary=b"),
        (b"no form", "multipart/form-data; boundary=b"),
        (b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--b--', "multipart/form-data; boundary=b"),
    ]
    for content, kind in forms:
        problem(upload(refusing, content, {"Content-Type": kind}), 400, "malformed_body")
    assert names(refusing) == set()


@pytest.fixture
def small(sqlite_app: App) -> Iterator[App]:
    """An app that takes 2,000 bytes a dataset."""
    given = sqlite_app.context.settings
    values = settings(given.home, given.database_url, max_dataset_bytes=2000)
    with app_on(sqlite_app.context.db, values) as running:
        yield running


def test_a_dataset_that_is_too_large_is_refused(small: App):
    assert small.get("/v1/capabilities").json()["limits"]["dataset_bytes"] == 2000
    problem(upload(small, b'{"a": "x"}\n' * 200), 413, "dataset_too_large")
    wide = ",".join(f"a_long_name_{n}" for n in range(20)).encode()
    problem(upload(small, wide + b"\n" + (b"," * 19 + b"\n") * 30, CSV), 422, "invalid_dataset")
    assert names(small) == set()


def test_lists_are_paged_newest_first(sqlite_app: App):
    ids = [uploaded(sqlite_app, f'{{"n": {n}}}'.encode())["id"] for n in range(5)]
    first = sqlite_app.get("/v1/datasets", params={"page_size": 3}).json()
    second = sqlite_app.get("/v1/datasets", params={"page_token": first["next_page_token"]}).json()
    assert [item["id"] for item in [*first["items"], *second["items"]]] == ids[::-1]
    assert second["next_page_token"] is None
    problem(sqlite_app.get("/v1/datasets", params={"page_token": "x"}), 400, "invalid_argument")


def test_a_dataset_is_its_owners_alone(sqlite_app: App):
    db = sqlite_app.context.db
    ann, bob = ({"Authorization": f"Bearer {create_key(db, who, PEPPER)}"} for who in ("ann", "bob"))
    theirs = upload(sqlite_app, headers={**JSONL, **ann}).json()
    path = f"/v1/datasets/{theirs['id']}"
    for method in ("GET", "DELETE"):
        problem(sqlite_app.request(method, path, headers=bob), 404, "dataset_not_found")
    assert sqlite_app.get("/v1/datasets", headers=bob).json()["items"] == []
    assert upload(sqlite_app, headers={**JSONL, **bob}).status_code == 201
    spec = spec_document(prompts={"dataset": {"id": theirs["id"]}})
    refused = problem(sqlite_app.post("/v1/jobs", json=spec, headers=bob), 422, "invalid_spec")
    assert pointers(refused) == {"/prompts/dataset/id": "dataset_not_found"}
    assert sqlite_app.post("/v1/jobs", json=spec, headers=ann).status_code == 201
    file = spec_document(prompts={"file": {"path": f"{theirs['id']}.jsonl"}})
    refused = problem(sqlite_app.post("/v1/jobs", json=file, headers=ann), 422, "invalid_spec")
    assert pointers(refused) == {"/prompts/file/path": "source_unusable"}
    problem(sqlite_app.get(f"/v1/datasets/{'x' * 300}", headers=ann), 404, "dataset_not_found")


def test_a_spec_names_a_dataset_wherever_it_takes_texts(sqlite_app: App):
    dataset = {"id": uploaded(sqlite_app)["id"], "field": "prompt"}
    spec = spec_document(
        prompts={"dataset": dataset, "max_tokens": 9},
        evaluation={"prompts": {"dataset": dataset}},
        ptx={"texts": {"dataset": dataset}},
        rewards=[{"name": "right", "rule": {"name": "exact"}}],
    )
    response = sqlite_app.post("/v1/jobs", json=spec)
    assert response.status_code == 201, response.text
    config = claimed(sqlite_app.context.db, response.json()["id"]).spec.train_config()
    assert config.evaluation is not None
    assert config.ptx is not None
    for prompts in (config.prompts, config.evaluation.prompts, config.ptx.texts):
        assert prompts.dataset is None
        assert prompts.file is not None
        assert (prompts.file.path, prompts.file.field) == (f"{dataset['id']}.jsonl", "prompt")
        lines = load_prompts(prompts, [sqlite_app.context.settings.datasets_dir])
        assert [(line.text, line.record["answer"]) for line in lines] == [
            ("The movie was", "good"),
            ("My dinner at é", 2),
        ]
    assert config.prompts.max_tokens == 9


@pytest.mark.parametrize(
    ("prompts", "where"),
    [
        ({"field": "promt"}, "unknown_column"),
        ({"field": "answer"}, "column_unfit"),
        ({"field": "chat"}, "column_unfit"),
        ({"field": "late"}, "column_unfit"),
        ({"field": "long"}, "too_long"),
        ({"field": "chat", "chat": {}}, None),
        ({"field": "prompt", "chat": {}}, None),
    ],
)
def test_a_column_must_be_one_of_texts(sqlite_app: App, prompts: dict[str, Any], where: str | None):
    rows = [
        {"prompt": "a", "answer": 1, "chat": [{"role": "user", "content": "hi"}], "long": "x" * 100_001},
        {"prompt": "b", "answer": "b", "chat": "hi", "long": "y", "late": "c"},
    ]
    dataset = uploaded(sqlite_app, "\n".join(map(json.dumps, rows)).encode())
    chat = {"chat": prompts["chat"]} if "chat" in prompts else {}
    spec = spec_document(prompts={"dataset": {"id": dataset["id"], "field": prompts["field"]}, **chat})
    response = sqlite_app.post("/v1/jobs", json=spec)
    if where is None:
        assert response.status_code == 201, response.text
        return
    document = problem(response, 422, "invalid_spec")
    assert pointers(document) == {"/prompts/dataset/field": where}
    if where == "unknown_column":
        assert document["errors"][0]["suggestion"] == "prompt"


def test_a_dataset_stays_while_a_job_needs_it(app: App):
    db, dataset = app.context.db, uploaded(app)
    path = f"/v1/datasets/{dataset['id']}"
    spec = make_spec(prompts={"dataset": {"id": dataset["id"]}})
    waiting, running = (submit(db, LOCAL, spec, roots=[])[0].id for _ in range(2))
    held = claimed(db, running)
    refused = problem(app.request("DELETE", path), 409, "dataset_in_use")
    assert waiting in refused["detail"]
    assert running in refused["detail"]
    cancel(db, LOCAL, waiting)
    problem(app.request("DELETE", path), 409, "dataset_in_use")
    lifecycle.succeed(db, held.lease)
    assert app.request("DELETE", path).status_code == 204
    assert names(app) == set()
    problem(app.get(path), 404, "dataset_not_found")
    refused = problem(app.post("/v1/jobs", json=spec.document()), 422, "invalid_spec")
    assert pointers(refused) == {"/prompts/dataset/id": "dataset_not_found"}
    assert app.get(f"/v1/jobs/{running}").json()["state"] == "succeeded"
    assert uploaded(app)["id"] != dataset["id"]


def test_another_owners_job_holds_nothing(sqlite_app: App):
    dataset = uploaded(sqlite_app)
    submitted(sqlite_app.context.db, Principal("bob"))
    assert sqlite_app.request("DELETE", f"/v1/datasets/{dataset['id']}").status_code == 204


def test_what_a_crash_left_is_swept(sqlite_app: App):
    import os

    folder: Path = sqlite_app.context.settings.datasets_dir
    folder.mkdir(parents=True)
    for name, age in ((".partial-old", 100_000), (".partial-new", 10)):
        (folder / name).write_bytes(b"")
        then = (folder / name).stat().st_mtime - age
        os.utime(folder / name, (then, then))
    dataset = uploaded(sqlite_app)
    assert names(sqlite_app) == {".partial-new", f"{dataset['id']}.jsonl"}
