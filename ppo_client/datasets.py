"""Datasets: files of prompts that are uploaded once and named in specs by their id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from jobs.views import DatasetView
from ppo_client.errors import ClientError
from ppo_client.pages import pages
from ppo_client.transport import Transport

_CHUNK_BYTES = 1 << 20
_CHECK_SECONDS = 600.0
"""The service reads every row before it answers."""
_MEDIA_TYPES = {
    ".jsonl": "application/jsonl",
    ".ndjson": "application/jsonl",
    ".csv": "text/csv",
    ".parquet": "application/vnd.apache.parquet",
}


class UnusableFile(ClientError):
    """A file here that cannot be uploaded."""


class Datasets:
    """The part of `PPOClient` for uploaded prompts and texts."""

    _http: Transport

    def add_dataset(self, path: Path, *, name: str | None = None) -> DatasetView:
        """Upload a `.jsonl`, `.csv` or `.parquet` file. The same file uploaded again gives the dataset there is.

        Raises:
            UnusableFile: it cannot be read, or its name has another end.
        """
        kind = _MEDIA_TYPES.get(path.suffix.lower())
        if kind is None:
            raise UnusableFile(f"{path} must end with {', '.join(_MEDIA_TYPES)}")
        try:
            size = path.stat().st_size
        except OSError as error:
            raise UnusableFile(f"cannot read {path}: {error.strerror}") from error
        answer = self._http.json(
            "POST",
            "/v1/datasets",
            params={"name": name or path.name[-128:]},
            content=_File(path),
            headers={"Content-Type": kind, "Content-Length": str(size)},
            read_timeout_seconds=_CHECK_SECONDS,
        )
        return DatasetView.model_validate(answer)

    def dataset(self, dataset_id: str) -> DatasetView:
        """One dataset with its first rows."""
        return DatasetView.model_validate(self._http.json("GET", _path(dataset_id)))

    def datasets(self, *, page_size: int = 50) -> Iterator[DatasetView]:
        """All datasets, newest first; pages are fetched as they are needed."""
        return pages(self._http, "/v1/datasets", DatasetView, {"page_size": page_size})

    def delete_dataset(self, dataset_id: str) -> None:
        """Delete a dataset; the service refuses while a job that has not ended needs it."""
        self._http.json("DELETE", _path(dataset_id))


class _File:
    """The bytes of a file, from its start each time: a retry sends all of it again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


def _path(dataset_id: str) -> str:
    return f"/v1/datasets/{quote(dataset_id, safe='')}"
