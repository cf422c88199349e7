"""DatasetService says what REST says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from google.protobuf import json_format

from api.rpc.v1 import dataset_service_pb2 as pb
from api.rpc.v1.dataset_service_pb2_grpc import DatasetServiceStub
from jobs.auth import LOCAL
from jobs.db import Database
from tests.support.attempts import submitted
from tests.support.grpc_api import refusal
from tests.support.http_api import Served, served_on, settings

pytestmark = pytest.mark.slow

LINES = b'{"prompt": "The movie was"}\n{"prompt": "My dinner at"}\n'


@pytest.fixture
def doors(sqlite_url: str, home: Path) -> Iterator[Served]:
    db = Database(sqlite_url)
    with served_on(db, settings(home, sqlite_url, http_port=0, grpc_port=0)) as running:
        yield running
    db.dispose()


@pytest.fixture
def stub(doors: Served) -> Iterator[DatasetServiceStub]:
    with grpc.insecure_channel(doors.grpc) as channel:
        yield DatasetServiceStub(channel)


def parts(*chunks: bytes, name: str = "films.jsonl", kind: str = "") -> Iterator[pb.UploadDatasetRequest]:
    yield pb.UploadDatasetRequest(header=pb.DatasetHeader(name=name, format=kind))
    for chunk in chunks:
        yield pb.UploadDatasetRequest(chunk=chunk)


def upload(
    stub: DatasetServiceStub, *chunks: bytes, name: str = "films.jsonl", kind: str = ""
) -> pb.UploadDatasetResponse:
    return stub.UploadDataset(parts(*chunks, name=name, kind=kind), timeout=60)


def test_a_dataset_is_the_same_through_both_doors(stub: DatasetServiceStub, doors: Served):
    created = upload(stub, LINES[:10], LINES[10:])
    assert created.created
    dataset_id = created.dataset.id
    found = stub.GetDataset(pb.GetDatasetRequest(dataset_id=dataset_id), timeout=60).dataset
    shown = httpx.get(f"{doors.http}/v1/datasets/{dataset_id}", timeout=60).json()
    over_grpc = json_format.MessageToDict(found, preserving_proto_field_name=True)
    assert {name: over_grpc[name] for name in ("id", "name", "format", "sha256", "preview", "links")} == {
        name: shown[name] for name in ("id", "name", "format", "sha256", "preview", "links")
    }
    assert (found.rows, found.size_bytes) == (shown["rows"], shown["size_bytes"]) == (2, len(LINES))
    (column,) = found.columns
    assert (column.name, list(column.kinds), column.rows) == ("prompt", ["text"], 2)
    assert not column.HasField("first_row_not_text")
    again = httpx.post(
        f"{doors.http}/v1/datasets", content=LINES, headers={"Content-Type": "application/jsonl"}, timeout=60
    )
    assert (again.status_code, again.json()["id"]) == (200, dataset_id)
    assert not upload(stub, LINES).created


def test_pages_and_delete(stub: DatasetServiceStub, doors: Served):
    ids = [upload(stub, b'{"n": %d}' % n).dataset.id for n in range(3)]
    first = stub.ListDatasets(pb.ListDatasetsRequest(page_size=2), timeout=60)
    second = stub.ListDatasets(pb.ListDatasetsRequest(page_token=first.next_page_token), timeout=60)
    assert [item.id for item in [*first.datasets, *second.datasets]] == ids[::-1]
    assert second.next_page_token == ""
    dataset = upload(stub, LINES).dataset
    submitted(doors.context.db, LOCAL, prompts={"dataset": {"id": dataset.id}})
    request = pb.DeleteDatasetRequest(dataset_id=dataset.id)
    used = refusal(lambda: stub.DeleteDataset(request, timeout=60))
    assert (used.code, used.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "dataset_in_use")
    stub.DeleteDataset(pb.DeleteDatasetRequest(dataset_id=ids[0]), timeout=60)
    gone = refusal(lambda: stub.GetDataset(pb.GetDatasetRequest(dataset_id=ids[0]), timeout=60))
    assert (gone.code, gone.reason) == (grpc.StatusCode.NOT_FOUND, "dataset_not_found")


def test_refusals_name_the_rows(stub: DatasetServiceStub, doors: Served):
    bad = refusal(lambda: upload(stub, b"prompt,n\na,1\nb\n", name="table.csv"))
    assert (bad.code, bad.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_dataset")
    assert bad.violations == {"rows[2]": "unreadable"}
    assert refusal(lambda: upload(stub, LINES, name="x.exe")).reason == "unsupported_media_type"
    assert refusal(lambda: upload(stub, LINES, kind="xls")).reason == "unsupported_media_type"
    headless = [pb.UploadDatasetRequest(chunk=LINES)]
    assert refusal(lambda: stub.UploadDataset(iter(headless), timeout=60)).reason == "malformed_body"
    twice = [*parts(), *parts()]
    assert refusal(lambda: stub.UploadDataset(iter(twice), timeout=60)).reason == "malformed_body"
    folder = doors.context.settings.datasets_dir
    assert not folder.exists() or list(folder.iterdir()) == []
