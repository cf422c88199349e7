"""Downloads that go on where they broke: in the same call, or in the next one after a crash.

What has come lies beside the target as `.TARGET.DIGEST.part`. The digest is the archive's ETag, so the service sends
the rest only of the very same bytes, and anything else from its beginning.
"""

from __future__ import annotations

import errno
import fcntl
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from jobs.views import CheckpointView
from ppo_client import archive
from ppo_client.errors import ApiError, DownloadError, ProtocolError
from ppo_client.transport import Transport

_BLOCK_BYTES = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Downloads:
    """The part of `PPOClient` that fetches what jobs have made. Everything is verified file by file.

    All methods write the new folder `target`, which appears only when all of it is there and right.

    Raises:
        DownloadError: damaged or unsafe, and nothing is left; or the connection broke too often, and the next call goes
            on from there.
        FileExistsError: `target` exists.
    """

    _http: Transport

    def choose_checkpoint(self, job_id: str, step: int | None = None) -> CheckpointView:
        """The checkpoint of a step, or the last one; see PPOClient."""
        raise NotImplementedError

    def download(self, job_id: str, target: Path, *, checkpoint: CheckpointView | None = None) -> CheckpointView:
        """Fetch a whole checkpoint, by default the last; raises NoCheckpoint where there is none."""
        _refuse_existing(target)
        chosen = checkpoint or self.choose_checkpoint(job_id)
        self._fetch(_path(job_id, "checkpoints", str(chosen.step), "archive"), target, sha256=chosen.sha256)
        return chosen

    def export(self, job_id: str, target: Path, *, step: int | str = "last", form: str = "merged") -> None:
        """Fetch a trained model as `from_pretrained` loads it: of a step, or of the `best` or `last` checkpoint.

        `form`: merged (the whole model, adapters merged), full (of a run without adapters) or adapter.
        """
        _refuse_existing(target)
        self._fetch(_path(job_id, "export"), target, params={"step": str(step), "form": form})

    def download_tensorboard(self, job_id: str, target: Path) -> None:
        """Fetch the TensorBoard files that the job has written up to now."""
        _refuse_existing(target)
        self._fetch(_path(job_id, "tensorboard", "archive"), target)

    def _fetch(
        self, path: str, target: Path, *, params: Mapping[str, Any] | None = None, sha256: str | None = None
    ) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = self._receive(path, params, target)
        try:
            archive.unpack(_blocks(part), target, sha256=sha256 or _digest_of(part))
        finally:
            part.unlink(missing_ok=True)

    def _receive(self, path: str, params: Mapping[str, Any] | None, target: Path) -> Path:
        """The whole archive in a file."""
        failures, most = 0, self._http.retry.attempts
        while True:
            part = _found_part(target)
            had = part.stat().st_size if part else 0
            try:
                return self._go_on(path, params, target, part)
            except httpx.TransportError as error:
                part = _found_part(target)
                came = part is not None and part.stat().st_size != had
                failures = 1 if came else failures + 1
                if failures >= most:
                    kept = (
                        f"; {part.stat().st_size:,} bytes are kept, and the next call goes on from there"
                        if part
                        else ""
                    )
                    raise DownloadError(f"the connection broke while the archive came: {error}{kept}") from error
                time.sleep(self._http.retry.wait_seconds(failures, None))

    def _go_on(self, path: str, params: Mapping[str, Any] | None, target: Path, part: Path | None) -> Path:
        headers = {"Accept-Encoding": "identity"}
        if part is not None:
            headers |= {"Range": f"bytes={part.stat().st_size}-", "If-Range": f'"{_digest_of(part)}"'}
        try:
            with self._http.stream(path, params=params, headers=headers) as response:
                return _write(response, target, part)
        except ApiError as error:
            if error.status != httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE or part is None:
                raise
            part.unlink()  # it has all bytes already, or is no part of this archive: cheaper to fetch than to ask
            return self._go_on(path, params, target, None)


def _write(response: httpx.Response, target: Path, part: Path | None) -> Path:
    """Append what comes to the part it belongs to."""
    digest = response.headers.get("etag", "").strip('"')
    if not _DIGEST.fullmatch(digest):
        raise ProtocolError("the service did not say which archive it sends")
    goes_on = response.status_code == httpx.codes.PARTIAL_CONTENT
    file_path = target.parent / f".{target.name}.{digest}.part"
    if part is not None and part != file_path:
        part.unlink()  # of an archive that is no more
    start = _start(response) if goes_on else 0
    with file_path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DownloadError(f"another download into {target} is under way") from error
        file.truncate(start)
        for chunk in response.iter_raw():
            file.write(chunk)
    return file_path


def _start(response: httpx.Response) -> int:
    """The place of a part's first byte."""
    match = re.match(r"bytes (\d+)-", response.headers.get("content-range", ""))
    if match is None:
        raise ProtocolError("the service did not say which part of the archive it sends")
    return int(match[1])


def _found_part(target: Path) -> Path | None:
    """What an earlier call left; the newest, should there be several."""
    prefix = f".{target.name}."
    parts = [path for path in target.parent.iterdir() if path.name == f"{prefix}{_digest_of(path)}.part"]
    return max(parts, key=lambda path: path.stat().st_mtime, default=None)


def _digest_of(part: Path) -> str:
    return part.name.removesuffix(".part").rpartition(".")[2]


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise FileExistsError(errno.EEXIST, "exists already", str(target))


def _path(job_id: str, *parts: str) -> str:
    return "/".join(["/v1/jobs", quote(job_id, safe=""), *parts])
