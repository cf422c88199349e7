"""One owner's datasets take no more room than allowed, whatever arrives at the same moment."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import httpx
import pytest
import sqlalchemy as sa

from api.rpc.v1 import access_service_pb2, access_service_pb2_grpc, dataset_service_pb2, dataset_service_pb2_grpc
from jobs import datasets, quotas
from jobs.access_requests import QuotaRequest
from jobs.auth import LOCAL, OPERATOR
from jobs.dataset_rows import DatasetFormat
from jobs.db import Database
from jobs.errors import DatasetQuotaExceeded
from jobs.principal import Principal
from jobs.quotas import Limits
from jobs.tables import Dataset
from jobs.views import DatasetView
from tests.support.attempts import ANN, BOB
from tests.support.grpc_api import refusal
from tests.support.http_api import served_on, settings
from tests.support.problem_json import problem

JSONL = {"Content-Type": "application/jsonl"}
TWO = Limits(datasets=2)
ROW = json.dumps({"prompt": "abcdefgh"}).encode() + b"\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the datasets lie, and nothing else."""
    return tmp_path / "datasets"


def add(db: Database, folder: Path, text: str, limits: Limits = TWO, owner: Principal = ANN) -> DatasetView:
    with datasets.Upload(folder, 10_000) as upload:
        upload.write(json.dumps({"prompt": text}).encode() + b"\n")
        return datasets.add(db, owner, upload, name="x", kind=DatasetFormat.JSONL, limits=limits)[0]


def kept(folder: Path) -> int:
    return len(list(folder.iterdir()))


def test_one_more_than_allowed_is_refused_until_one_is_deleted(database: Database, folder: Path) -> None:
    first = add(database, folder, "a")
    add(database, folder, "b")
    with pytest.raises(
        DatasetQuotaExceeded, match="2 datasets are your quota, and this would be number 3: delete some"
    ):
        add(database, folder, "c")
    assert add(database, folder, "a").id == first.id, "what is there already takes no room"
    add(database, folder, "c", owner=BOB)
    assert kept(folder) == 3
    datasets.delete(database, ANN, first.id, folder)
    add(database, folder, "c")
    found = quotas.quota(database, "ann", TWO)
    assert (found.datasets.used, found.datasets.limit, found.stored_bytes.limit) == (2, 2, None)


def test_bytes_count_as_they_lie_on_disk(database: Database, folder: Path) -> None:
    limits = Limits(stored_bytes=100)
    view = add(database, folder, "x" * 40, limits)
    assert view.stored_bytes == (folder / f"{view.id}.jsonl").stat().st_size
    with pytest.raises(DatasetQuotaExceeded, match="100 bytes of datasets are your quota"):
        add(database, folder, "y" * 60, limits)
    with database.transaction() as session:  # a Parquet file that became much larger
        session.execute(sa.update(Dataset).values(stored_bytes=100))
    with pytest.raises(DatasetQuotaExceeded):
        add(database, folder, "y", limits)
    with database.transaction() as session:  # of an older version
        session.execute(sa.update(Dataset).values(stored_bytes=None))
    add(database, folder, "y", limits)
    assert kept(folder) == 2


def test_an_administrator_allows_an_owner_more_or_less(database: Database, folder: Path) -> None:
    quotas.set_quota(database, OPERATOR, "ann", QuotaRequest(max_datasets=0), TWO)
    with pytest.raises(DatasetQuotaExceeded):
        add(database, folder, "a")
    view = quotas.set_quota(database, OPERATOR, "ann", QuotaRequest(max_stored_bytes=10_000), replace(TWO, datasets=1))
    assert (view.datasets.limit, view.stored_bytes.limit, view.is_default) == (1, 10_000, False)
    add(database, folder, "a")
    assert quotas.quota(database, "bob", TWO).is_default


@pytest.mark.parametrize("limits", [TWO, Limits(stored_bytes=60)])
def test_of_uploads_at_the_same_moment_no_more_pass_than_fit(database: Database, folder: Path, limits: Limits) -> None:
    """Each has 24 bytes or so; all have seen that there is room before the first one is stored."""
    together = threading.Barrier(4, timeout=60)

    def one(text: str) -> bool:
        with datasets.Upload(folder, 10_000) as upload:
            upload.write(json.dumps({"prompt": text * 8}).encode() + b"\n")
            together.wait()
            try:
                datasets.add(database, ANN, upload, name="x", kind=DatasetFormat.JSONL, limits=limits)
            except DatasetQuotaExceeded:
                return False
            return True

    with ThreadPoolExecutor(4) as pool:
        passed = list(pool.map(one, "abcd"))
    assert (sum(passed), kept(folder)) == (2, 2)


def test_both_doors_refuse_alike_and_show_what_is_used(sqlite_url: str, home: Path) -> None:
    db = Database(sqlite_url)
    given = settings(home, sqlite_url, http_port=0, grpc_port=0, max_datasets=1, max_stored_bytes=5000)
    with served_on(db, given) as served, grpc.insecure_channel(served.grpc) as channel:
        uploads = dataset_service_pb2_grpc.DatasetServiceStub(channel)
        access = access_service_pb2_grpc.AccessServiceStub(channel)

        def parts(content: bytes) -> list[dataset_service_pb2.UploadDatasetRequest]:
            header = dataset_service_pb2.DatasetHeader(name="x.jsonl")
            one = dataset_service_pb2.UploadDatasetRequest
            return [one(header=header), one(chunk=content)]

        first = uploads.UploadDataset(iter(parts(ROW)), timeout=60)
        assert first.dataset.stored_bytes > 0
        found = refusal(lambda: uploads.UploadDataset(iter(parts(ROW * 2)), timeout=60))
        assert (found.code, found.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "dataset_quota_exceeded")
        answer = httpx.post(served.http + "/v1/datasets", content=ROW * 2, headers=JSONL, timeout=60)
        document = problem(answer, 413, "dataset_quota_exceeded")
        assert "1 datasets are your quota, and this would be number 2" in document["detail"]
        assert "Retry-After" not in answer.headers
        mine = access.GetMe(access_service_pb2.GetMeRequest(), timeout=60).quota
        assert (mine.datasets.used, mine.datasets.limit) == (1, 1)
        assert (mine.stored_bytes.used, mine.stored_bytes.limit) == (first.dataset.stored_bytes, 5000)
        quotas.set_quota(db, OPERATOR, LOCAL.owner_id, QuotaRequest(max_datasets=2), given.limits)
        answer = httpx.post(served.http + "/v1/datasets", content=ROW * 2, headers=JSONL, timeout=60)
        assert answer.status_code == 201
    db.dispose()
