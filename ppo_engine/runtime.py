"""The machine: device, precision, threads, memory and random states. Torch's process group is accelerate's."""

from __future__ import annotations

import errno
import os
import random
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import transformers
from accelerate import Accelerator
from torch import Tensor
from torch._C._distributed_c10d import Store

from ppo_engine.config import Device, Precision, ResourcesConfig
from ppo_engine.errors import DeviceUnavailable, OutOfMemory

COLLECTIVE_TIMEOUT = timedelta(hours=1)
"""Longest wait of one process for another: a reward server may be slow, or a model large. A process that is lost is
noticed long before (`program.launch`)."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the processes of a run find each other."""

    rank: int
    count: int
    store: Store


def start(config: ResourcesConfig, *, threads: int | None = None, meeting: Meeting | None = None) -> Accelerator:
    """Set the thread count; device and process group are accelerate's, precision is `models.compute`'s.

    Args:
        threads: of all processes of the run together.
        meeting: the other processes, if there are any.

    Raises:
        DeviceUnavailable: CUDA was asked for and is not here, or has fewer devices than there are processes.
    """
    transformers.utils.logging.disable_progress_bar()
    processes = 1 if meeting is None else meeting.count
    torch.set_num_threads(max(1, (threads or config.threads or len(os.sched_getaffinity(0))) // processes))
    cuda = torch.cuda.is_available()
    if config.device is Device.CUDA and not cuda:
        raise DeviceUnavailable("resources.device is `cuda`, and this machine has no CUDA device")
    cpu = config.device is Device.CPU or not cuda
    if meeting is not None:
        _meet(meeting, cpu=cpu)
    return Accelerator(cpu=cpu, mixed_precision="no")


def _meet(meeting: Meeting, *, cpu: bool) -> None:
    """Make torch's process group, each process with a device of its own."""
    if not cpu:
        if torch.cuda.device_count() < meeting.count:
            raise DeviceUnavailable(
                f"resources.processes is {meeting.count}, and this machine has {torch.cuda.device_count()} CUDA devices"
            )
        torch.cuda.set_device(meeting.rank)
    dist.init_process_group(
        "gloo" if cpu else "nccl",
        store=meeting.store,
        rank=meeting.rank,
        world_size=meeting.count,
        timeout=COLLECTIVE_TIMEOUT,
    )


def compute_dtype(config: ResourcesConfig, device: torch.device) -> torch.dtype:
    """What the passes compute in; `auto` is bf16 where the device multiplies it faster than fp32."""
    if config.precision is not Precision.AUTO:
        return torch.bfloat16 if config.precision is Precision.BF16 else torch.float32
    fast = torch.cuda.is_bf16_supported() if device.type == "cuda" else _cpu_has_bf16()
    return torch.bfloat16 if fast else torch.float32


def _cpu_has_bf16() -> bool:
    """Whether the processor has instructions for it; without them bf16 is slower than fp32."""
    found = torch.cpu.get_capabilities()
    return bool(found.get("amx_bf16") or found.get("avx512_bf16"))


def peak_memory_bytes(device: torch.device) -> int:
    """Peak so far: allocated on a CUDA device, resident of the process on CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


_NO_MEMORY = (
    "can't allocate memory",  # torch on the CPU
    "out of memory",  # CUDA where it is not torch's allocator that asks
    "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn every way in which torch, its libraries and the system say "no memory" into OutOfMemory."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemory(str(error) or "out of memory") from error
    except RuntimeError as error:
        if any(words in str(error) for words in _NO_MEMORY):
            raise OutOfMemory(str(error)) from error
        raise
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise OutOfMemory(str(error)) from error
        raise


def random_states() -> dict[str, Tensor]:
    """The process-wide random states of torch, CUDA, NumPy and Python as tensors. Our own draws use own generators."""
    numpy_state = np.random.get_state(legacy=False)  # type: ignore[no-untyped-call, unused-ignore]
    inner = numpy_state["state"]
    _, words, _ = random.getstate()
    states = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(inner["key"].astype(np.int64)),
        "numpy_position": torch.tensor(int(inner["pos"])),
        "python": torch.tensor(words, dtype=torch.int64),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: dict[str, Tensor]) -> None:
    """Put back what `random_states` returned."""
    torch.set_rng_state(states["torch"])
    key = states["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, int(states["numpy_position"]), 0, 0.0))
    random.setstate((3, tuple(states["python"].tolist()), None))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def seed_everything(seed: int) -> None:
    """Seed the process-wide generators, for code that is not ours (initialisers, plugins)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
