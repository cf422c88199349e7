"""Whether the kernel killed something of this worker's control group for want of memory."""

from __future__ import annotations

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_VERSION_2, _VERSION_1 = "memory.events", "memory.oom_control"


def oom_kills(cgroup: Path = _CGROUP, membership: Path = Path("/proc/self/cgroup")) -> int:
    """How many processes of our memory control group the kernel has killed so far; 0 where it does not say."""
    own = [line.split(":", 2)[2].lstrip("/") for line in _lines(membership) if _is_memory(line)]
    # Seen from inside a container, our own group is often the top.
    groups = {*own, ""}
    files = {cgroup / group / _VERSION_2 for group in groups} | {
        cgroup / "memory" / group / _VERSION_1 for group in groups
    }
    return sum(map(_count, files))


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
