"""Whether the kernel killed something of this worker's control group for want of memory."""

from __future__ import annotations

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_FILES = ("memory.events", "memory/memory.oom_control", "memory.oom_control")


def oom_kills(cgroup: Path = _CGROUP, membership: Path = Path("/proc/self/cgroup")) -> int:
    """How many processes of our memory control group the kernel has killed so far; 0 where it does not say."""
    counts = [_count(path) for path in _counter_files(cgroup, membership)]
    return sum(counts)


def _counter_files(cgroup: Path, membership: Path) -> list[Path]:
    """The counters of version 2 and 1, in our own group's folder or, seen from inside a container, at the top."""
    own = [line.split(":", 2)[2].lstrip("/") for line in _lines(membership) if _is_memory(line)]
    return [
        path
        for path in (
            *(cgroup / group / "memory.events" for group in own),
            *(cgroup / "memory" / group / "memory.oom_control" for group in own),
            *(cgroup / name for name in _FILES),
        )
        if path.is_file()
    ]


def _is_memory(line: str) -> bool:
    hierarchy, controllers, _ = line.split(":", 2)
    return hierarchy == "0" or "memory" in controllers.split(",")


def _count(path: Path) -> int:
    fields = dict(line.split(maxsplit=1) for line in _lines(path) if " " in line)
    return int(fields.get("oom_kill", 0))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
