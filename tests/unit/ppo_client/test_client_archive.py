"""A checkpoint's archive: verified, and never written outside its folder."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from ppo_client import archive
from ppo_client.client import NoCheckpoint, PPOClient
from ppo_client.errors import DownloadError
from tests.support.client_values import START
from tests.support.scripted_http import Reply, json_reply, serve

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
        (b"not a tar at all" * 100, "cannot be read"),
        (b"", "cannot be read"),
    ],
    ids=["changed", "missing", "unexpected", "twice", "no manifest", "cut", "garbage", "empty"],
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


def test_download_takes_the_last_checkpoint(tmp_path):
    with serve([listing(1, 3), Reply(200, checkpoint())]) as server, PPOClient(server.url) as client:
        assert client.download("job_01", tmp_path / "out").step == 3
    assert server.asked[1].path == "/v1/jobs/job_01/checkpoints/3/archive"
    assert written(tmp_path / "out").keys() == {*FILES, "manifest.json"}


def test_a_broken_connection_is_a_download_error(tmp_path):
    replies = [listing(3), Reply(200, checkpoint()[:4000], cut=True)]
    with serve(replies) as server, PPOClient(server.url) as client, pytest.raises(DownloadError, match="connection"):
        client.download("job_01", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(tmp_path):
    known = "steps that have one: 1, 3"
    with serve([listing(1, 3)]) as server, PPOClient(server.url) as client, pytest.raises(NoCheckpoint, match=known):
        client.choose_checkpoint("job_01", 2)
