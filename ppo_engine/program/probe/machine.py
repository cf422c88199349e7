"""The machine that the run would have: device, precision and memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from ppo_engine.config import Device, ResourcesConfig
from ppo_engine.errors import DeviceUnavailable
from ppo_engine.runtime import compute_dtype

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a process of the run finds."""

    device: str
    name: str
    dtype: torch.dtype
    total_bytes: int
    available_bytes: int


def look(config: ResourcesConfig) -> Machine:
    """The device that the spec would get here.

    Raises:
        DeviceUnavailable: CUDA was asked for and is not here, or has fewer devices than there are processes.
    """
    cuda = torch.cuda.is_available()
    if config.device is Device.CUDA and not cuda:
        raise DeviceUnavailable("resources.device is `cuda`, and this machine has no CUDA device")
    if config.device is Device.CPU or not cuda:
        device = torch.device("cpu")
        total, available = _memory()
        return Machine("cpu", f"{os.cpu_count()} cores", compute_dtype(config, device), total, available)
    if torch.cuda.device_count() < config.processes:
        raise DeviceUnavailable(
            f"resources.processes is {config.processes}, and this machine has {torch.cuda.device_count()} CUDA devices"
        )
    device = torch.device("cuda")
    available, total = torch.cuda.mem_get_info(device)
    return Machine("cuda", torch.cuda.get_device_name(device), compute_dtype(config, device), total, available)


def _memory() -> tuple[int, int]:
    """All memory and what is available of it, bytes; a container's limit where it has one."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    available = _meminfo("MemAvailable") or page * os.sysconf("SC_AVPHYS_PAGES")
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is not None and limit < total:
        return limit, min(available, limit - (used or 0))
    return total, available


def _meminfo(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith(f"{name}:"))
    return next((1024 * int(words[1]) for words in found), None)


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no such file, or it says `max`."""
    try:
        text = path.read_text("ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
