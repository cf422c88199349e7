from __future__ import annotations

from pathlib import Path

from worker.oom import oom_kills


def test_version_2_in_the_groups_own_folder(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/jobs/worker\n")
    events = tmp_path / "fs" / "jobs" / "worker" / "memory.events"
    events.parent.mkdir(parents=True)
    events.write_text("low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\n")
    assert oom_kills(tmp_path / "fs", membership) == 2


def test_version_1_seen_from_inside_a_container(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n")
    control = tmp_path / "fs" / "memory" / "memory.oom_control"
    control.parent.mkdir(parents=True)
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert oom_kills(tmp_path / "fs", membership) == 5


def test_a_system_that_does_not_say_counts_none(tmp_path: Path) -> None:
    assert oom_kills(tmp_path / "no", tmp_path / "nothing") == 0


def test_this_machine_can_be_asked() -> None:
    assert oom_kills() >= 0
