"""What clients write into requests changes no log line, no header and no spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
import structlog

from api.archive import open_archive
from api.http.csv_table import rows
from jobs import lifecycle, service
from jobs.archives import Bundle, Member, tensorboard_bundle
from jobs.auth import LOCAL, authenticate, create_key, list_keys, revoke_key
from jobs.db import Database
from jobs.errors import JobNotFound, Unauthenticated
from jobs.log import configure
from jobs.views import MetricsView
from ppo_engine.events import CheckpointSaved
from tests.support.attempts import claimed, submitted
from tests.support.http_api import PEPPER, App
from tests.support.specs import spec_document

BREAKS = [
    "\r\nX-Evil: 1",
    '\n{"event": "forged"}',
    "\x1b[2Jx",
    "\x00",
    "\u2028forged",
    "\x85",
    "a" * 5000,
    "\udcff",
    "%0d%0aX: 1",
]


@pytest.fixture
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before
    structlog.reset_defaults()
    for module in list(sys.modules.values()):  # loggers of modules keep the configuration of their first line
        logger = getattr(module, "log", None)
        if isinstance(logger, structlog._config.BoundLoggerLazyProxy):
            vars(logger).pop("bind", None)


@pytest.mark.usefixtures("_restored")
def test_nothing_in_a_request_breaks_a_log_line_or_a_header(sqlite_app: App, capsys: pytest.CaptureFixture[str]):
    configure("api")
    for text in BREAKS:
        raw = text.encode("utf-8", "surrogateescape").replace(b"\r", b" ").replace(b"\n", b" ").replace(b"\x00", b" ")
        headers = [(b"x-request-id", raw), (b"user-agent", raw), (b"idempotency-key", raw), (b"if-none-match", raw)]
        document = spec_document(labels={"a": text.replace("\udcff", "?")}, name=text.replace("\udcff", "?"))
        for answer in (
            sqlite_app.post("/v1/jobs", json=document, headers=headers),
            sqlite_app.get("/v1/jobs", params={"label": text.encode("utf-8", "surrogateescape")}, headers=headers),
            sqlite_app.get("/v1/nope/" + "".join(f"%{byte:02x}" for byte in raw[:500]), headers=headers),
            sqlite_app.request("GET\tX", "/livez", headers=headers),
        ):
            assert answer.status_code in range(200, 500)
            for name, value in answer.headers.raw:
                assert b"evil" not in name.lower()
                assert not any(char < 0x20 or char > 0x7E for char in value), (name, value)
    shown = capsys.readouterr().err
    assert shown.isascii()
    lines = [json.loads(line) for line in shown.splitlines()]
    assert {line["event"] for line in lines} == {"request_served"}
    assert len(lines) == 4 * len(BREAKS)


@pytest.mark.usefixtures("_restored")
def test_a_defect_is_logged_on_one_line(capsys: pytest.CaptureFixture[str]):
    configure("api")
    try:
        raise RuntimeError('\r\n{"event": "forged"}\x1b[2J\u2028')
    except RuntimeError:
        structlog.get_logger().exception("request_failed", path="/a\r\nb\x1b", method="\n")
    logging.getLogger("some.library").warning("bad: %s", "\r\nforged \x9b")
    shown = capsys.readouterr().err
    assert [json.loads(line)["event"].split()[0] for line in shown.splitlines()] == ["request_failed", "bad:"]
    assert shown.isascii()


def test_no_cell_of_the_metrics_is_a_formula():
    keys = ['=HYPERLINK("http://evil")', "+1", "-1+2", "@SUM(A1)", "\t=1", "objective/kl"]
    view = MetricsView(
        job_id="job_1",
        steps=[1],
        times=[datetime(2026, 1, 1, tzinfo=UTC)],
        series={key: [-0.5] for key in keys},
        downsampled=False,
    )
    header, values = csv.reader(io.StringIO("".join(rows(view))))
    assert not [cell for cell in header if cell[:1] in "=+-@\t\r"]
    assert values[2:] == ["-0.5"] * len(keys)


# --- downloads ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_outside_its_run_is_not_handed_out(sqlite_app: App):
    db, runs = sqlite_app.context.db, sqlite_app.context.settings.runs_dir
    held = claimed(db, submitted(db, LOCAL))
    secret = runs / "job_other" / "checkpoints" / "step-00000001-1"
    secret.mkdir(parents=True)
    (secret / "manifest.json").write_text("secret")
    (runs / held.lease.job_id / "checkpoints").mkdir(parents=True)
    (runs / held.lease.job_id / "checkpoints" / "link").symlink_to(secret)
    ways = ["../job_other/checkpoints/step-00000001-1", str(secret), "checkpoints/link"]
    for step, path in enumerate(ways, start=1):
        lifecycle.record_checkpoint(
            db, held.lease, CheckpointSaved(step=step, path=path, size_bytes=1, sha256="0" * 64)
        )
        answer = sqlite_app.get(f"/v1/jobs/{held.lease.job_id}/checkpoints/{step}/archive")
        assert answer.status_code == 404, path
        assert "secret" not in answer.text


def test_a_file_that_became_a_link_is_not_sent(tmp_path: Path):
    file = tmp_path / "manifest.json"
    file.write_text("{}")
    bundle = Bundle([Member("manifest.json", 2, file)], "0" * 64, "x.tar")
    open_archive(bundle).files.close()
    file.unlink()
    file.symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="symbolic links"):
        open_archive(bundle)


def test_a_tensorboard_folder_that_is_a_link_is_empty(sqlite_app: App):
    db, runs = sqlite_app.context.db, sqlite_app.context.settings.runs_dir
    held = claimed(db, submitted(db, LOCAL))
    (runs / held.lease.job_id).mkdir(parents=True)
    (sqlite_app.context.settings.home / "secrets").mkdir()
    (sqlite_app.context.settings.home / "secrets" / "key").write_text("secret")
    (runs / held.lease.job_id / "tensorboard").symlink_to(sqlite_app.context.settings.home / "secrets")
    with pytest.raises(JobNotFound):
        tensorboard_bundle(db, LOCAL, held.lease.job_id, runs)


def test_a_log_that_is_a_link_is_not_shown(sqlite_app: App):
    db, runs = sqlite_app.context.db, sqlite_app.context.settings.runs_dir
    held = claimed(db, submitted(db, LOCAL))
    (runs / held.lease.job_id).mkdir(parents=True)
    (runs / held.lease.job_id / "engine-1.log").symlink_to("/etc/passwd")
    assert service.logs(db, LOCAL, held.lease.job_id, runs).lines == []


# --- keys ---------------------------------------------------------------------------------------------------------


def test_an_unknown_and_a_revoked_key_take_the_same_way(sqlite_url: str):
    """The same statements with the same work, so there is no time to tell them apart by."""
    db = Database(sqlite_url)
    revoked = create_key(db, "ann", PEPPER)
    create_key(db, "bob", PEPPER)
    assert revoke_key(db, next(key.id for key in list_keys(db) if key.owner == "ann"))
    ways = []
    for key in (revoked, "ppo_" + "a" * 43):
        seen: list[str] = []
        lines: list[tuple[str, int]] = []
        listen = lambda *arguments, seen=seen: seen.append(arguments[2])  # noqa: E731
        sa.event.listen(sa.Engine, "before_cursor_execute", listen)
        sys.settrace(lambda frame, *_, lines=lines: lines.append((frame.f_code.co_name, frame.f_lineno)))
        with pytest.raises(Unauthenticated) as refusal:
            authenticate(db, key, PEPPER)
        sys.settrace(None)
        sa.event.remove(sa.Engine, "before_cursor_execute", listen)
        ways.append(
            (seen, [line for line in lines if line[0] in {"authenticate", "key_hash", "_note_use"}], str(refusal.value))
        )
    assert ways[0] == ways[1]
    assert len(ways[0][0]) >= 1
    db.dispose()
