from __future__ import annotations

from pathlib import Path

from worker.engine_log import EngineLog


def test_lines_are_stored_once_complete_and_masked(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "engine-1.log", max_bytes=10_000, secrets=["swordfish"])
    log.write(b"first\nthe word is sword")
    assert (tmp_path / "engine-1.log").read_text() == "first\n"
    log.write(b"fish\nlast, without an end")
    log.close()
    assert (tmp_path / "engine-1.log").read_text() == "first\nthe word is ***\nlast, without an end\n"
    assert log.tail() == "first\nthe word is ***\nlast, without an end"


def test_the_tail_has_the_last_forty_lines_each_bounded(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "log", max_bytes=10**7)
    log.write(b"".join(b"line %d\n" % number for number in range(100)) + b"x" * 50_000 + b"\n")
    lines = log.tail().splitlines()
    log.close()
    assert len(lines) == 40
    assert max(map(len, lines)) == 400


def test_a_progress_bar_leaves_its_last_state_in_the_tail(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "log", max_bytes=10_000)
    log.write(b" 10%\r 50%\r100%\ndone\r\n")
    log.close()
    assert log.tail() == "100%\ndone"


def test_the_file_is_bounded_and_keeps_the_end(tmp_path: Path) -> None:
    path = tmp_path / "engine-1.log"
    log = EngineLog(path, max_bytes=5000)
    for number in range(1000):
        log.write(b"line %04d\n" % number)
    log.close()
    assert path.read_text().endswith("line 0999\n")
    assert sum(part.stat().st_size for part in tmp_path.iterdir()) <= 10_000
    assert sorted(part.name for part in tmp_path.iterdir()) == ["engine-1.log", "engine-1.log.1"]


def test_bytes_that_are_not_text_do_no_harm(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "log", max_bytes=10_000)
    log.write(b"\xff\xfe\x00 binary\n")
    log.close()
    assert "binary" in log.tail()


def test_a_full_disk_costs_the_file_and_not_the_job() -> None:
    log = EngineLog(Path("/dev/full"), max_bytes=10_000)
    log.write(b"one\n")
    log.write(b"two\n")
    log.close()
    assert log.tail() == "one\ntwo"
