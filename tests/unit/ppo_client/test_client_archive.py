"""A checkpoint's archive: verified, and never written outside its folder."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from ppo_client import archive
from ppo_client.client import NoCheckpoint, PPOClient
from ppo_client.errors import DownloadError
from ppo_client.transport import RetryPolicy
from tests.support.client_values import START
from tests.support.scripted_http import Reply, json_reply, problem, serve

FILES = {"model/config.json": b"{}", "model/model.safetensors": bytes(range(256)) * 40, "state.json": b'{"step": 3}'}


def manifest(files: dict[str, bytes]) -> bytes:
    entries = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    return json.dumps({"format": 1, "step": 3, "files": entries}).encode()


def tar(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as written:
        for info, data in members:
            info.size = len(data)
            written.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def checkpoint(files: dict[str, bytes] = FILES, extra: list[tuple[tarfile.TarInfo, bytes]] | None = None) -> bytes:
    members = [(tarfile.TarInfo(name), data) for name, data in {**files, "manifest.json": manifest(FILES)}.items()]
    return tar([*members, *(extra or [])])


DIGEST = hashlib.sha256(manifest(FILES)).hexdigest()


def unpack(data: bytes, target: Path, sha256: str = DIGEST, chunk: int = 1000) -> None:
    archive.unpack((data[at : at + chunk] for at in range(0, len(data), chunk)), target, sha256=sha256)


def written(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("chunk", [1, 511, 512, 513, 10**6])
def test_a_sound_archive_arrives_whole_however_it_is_cut(tmp_path, chunk):
    unpack(checkpoint(), tmp_path / "out", chunk=chunk)
    assert written(tmp_path / "out") == {**FILES, "manifest.json": manifest(FILES)}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def sparse(name: str, size: int) -> tuple[tarfile.TarInfo, bytes]:
    """A file that says it is 64 MiB of zeros, and could say more (PAX, GNU sparse 0.1)."""
    info = tarfile.TarInfo(name)
    info.pax_headers = {"GNU.sparse.map": f"{size},0", "GNU.sparse.size": str(size), "GNU.sparse.numblocks": "1"}
    return info, b""


@pytest.mark.parametrize(
    "member",
    [
        (tarfile.TarInfo("../outside"), b"x"),
        (tarfile.TarInfo("model/../../outside"), b"x"),
        (tarfile.TarInfo("/outside"), b"x"),
        (tarfile.TarInfo("..\\outside"), b"x"),
        link("model/link", "/etc/passwd"),
        link("hard", "state.json", tarfile.LNKTYPE),
        link("fifo", "", tarfile.FIFOTYPE),
        link("device", "", tarfile.CHRTYPE),
        sparse("sparse", 1 << 26),
    ],
    ids=lambda member: member[0].name,
)
def test_a_member_that_is_no_plain_file_inside_is_refused(tmp_path, member):
    with pytest.raises(DownloadError, match="not a plain file"):
        unpack(checkpoint(extra=[member]), tmp_path / "in" / "out")
    assert list((tmp_path / "in").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (checkpoint({**FILES, "state.json": b'{"step": 4}'}), "state.json"),
        (checkpoint({name: FILES[name] for name in FILES if name != "state.json"}), "state.json"),
        (checkpoint({**FILES, "surprise": b"x"}), "surprise"),
        (checkpoint(extra=[(tarfile.TarInfo("state.json"), b"twice")]), "exist"),
        (tar([(tarfile.TarInfo("state.json"), b"{}")]), "no manifest"),
        (checkpoint()[:3000], "cannot be read"),
        (gzip.compress(checkpoint()), "cannot be read"),
        (b"not a tar at all" * 100, "cannot be read"),
        (b"", "cannot be read"),
    ],
    ids=["changed", "missing", "unexpected", "twice", "no manifest", "cut", "compressed", "garbage", "empty"],
)
def test_a_damaged_archive_leaves_nothing_behind(tmp_path, data, message):
    with pytest.raises(DownloadError, match=message):
        unpack(data, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_of_another_checkpoint_is_refused(tmp_path):
    with pytest.raises(DownloadError, match="the checkpoint says"):
        unpack(checkpoint(), tmp_path / "out", sha256="0" * 64)


def test_an_existing_folder_is_left_alone_and_nothing_is_asked(tmp_path):
    with serve([]) as server, PPOClient(server.url) as client, pytest.raises(FileExistsError):
        client.download("job_01", tmp_path)
    assert server.asked == []


def listing(*steps: int) -> Reply:
    items = [
        {"step": step, "attempt": 1, "size_bytes": 9, "sha256": DIGEST, "create_time": START.isoformat(), "links": {}}
        for step in steps
    ]
    return json_reply({"items": items, "next_page_token": None})


ETAG = {"ETag": f'"{DIGEST}"'}
FAST = RetryPolicy(attempts=3, first_wait_seconds=0.01)


def sent(data: bytes, start: int = 0, etag: dict[str, str] = ETAG) -> Reply:
    """The archive, or the rest of it from `start`."""
    if not start:
        return Reply(200, data, etag)
    return Reply(206, data[start:], {**etag, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"})


def test_download_takes_the_last_checkpoint(tmp_path):
    with serve([listing(1, 3), sent(checkpoint())]) as server, PPOClient(server.url) as client:
        assert client.download("job_01", tmp_path / "out").step == 3
    assert server.asked[1].path == "/v1/jobs/job_01/checkpoints/3/archive"
    assert written(tmp_path / "out").keys() == {*FILES, "manifest.json"}


def test_a_broken_download_goes_on_where_it_broke(tmp_path):
    data = checkpoint()
    replies = [listing(3), Reply(200, data[:4000], ETAG, cut=True), Reply(drop=True), sent(data, 4000)]
    with serve(replies) as server, PPOClient(server.url, retry=FAST) as client:
        client.download("job_01", tmp_path / "out")
    assert [asked.headers.get("Range") for asked in server.asked[1:]] == [None, "bytes=4000-", "bytes=4000-"]
    assert server.asked[3].headers["If-Range"] == ETAG["ETag"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert written(tmp_path / "out").keys() == {*FILES, "manifest.json"}


def test_what_came_is_kept_for_the_next_call(tmp_path):
    data = checkpoint()
    rest = Reply(206, b"", {**ETAG, "Content-Range": f"bytes 5000-{len(data) - 1}/{len(data)}"}, cut=True)
    kept = pytest.raises(DownloadError, match="5,000 bytes are kept")
    broken = [listing(3), Reply(200, data[:5000], ETAG, cut=True), rest, rest, rest]
    with serve(broken) as server, PPOClient(server.url, retry=FAST) as client, kept:
        client.download("job_01", tmp_path / "out")
    with serve([listing(3), sent(data, 5000)]) as server, PPOClient(server.url) as client:
        client.download("job_01", tmp_path / "out")
    assert server.asked[1].headers["Range"] == "bytes=5000-"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_archive_that_changed_comes_from_its_beginning(tmp_path):
    (tmp_path / f".out.{'0' * 64}.part").write_bytes(b"of another checkpoint")
    with serve([listing(3), sent(checkpoint())]) as server, PPOClient(server.url) as client:
        client.download("job_01", tmp_path / "out")
    assert server.asked[1].headers["If-Range"] == f'"{"0" * 64}"'
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_part_that_is_already_whole_is_fetched_again(tmp_path):
    data = checkpoint()
    (tmp_path / f".out.{DIGEST}.part").write_bytes(data)
    with serve([listing(3), problem(416, detail="x"), sent(data)]) as server, PPOClient(server.url) as client:
        client.download("job_01", tmp_path / "out")
    assert written(tmp_path / "out").keys() == {*FILES, "manifest.json"}


def test_a_damaged_part_is_noticed_and_not_kept(tmp_path):
    data = checkpoint()
    (tmp_path / f".out.{DIGEST}.part").write_bytes(data[:2000] + b"X" + data[2001:4000])
    refused = pytest.raises(DownloadError, match=r"model\.safetensors")
    with serve([listing(3), sent(data, 4000)]) as server, PPOClient(server.url) as client, refused:
        client.download("job_01", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_two_downloads_into_one_folder_do_not_mix(tmp_path):
    with (tmp_path / f".out.{DIGEST}.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused = pytest.raises(DownloadError, match="under way")
        with serve([listing(3), sent(checkpoint())]) as server, PPOClient(server.url) as client, refused:
            client.download("job_01", tmp_path / "out")


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(tmp_path):
    known = "steps that have one: 1, 3"
    with serve([listing(1, 3)]) as server, PPOClient(server.url) as client, pytest.raises(NoCheckpoint, match=known):
        client.choose_checkpoint("job_01", 2)
