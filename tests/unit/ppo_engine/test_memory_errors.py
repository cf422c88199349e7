"""Every way to run out of memory is one error, and a run may go on with smaller microbatches."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import torch

from ppo_engine.build import config_digest
from ppo_engine.config import TrainConfig
from ppo_engine.errors import OutOfMemory
from ppo_engine.runtime import memory_errors


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
    ids=repr,
)
def test_it_is_out_of_memory(error: Exception) -> None:
    with pytest.raises(OutOfMemory) as raised, memory_errors():
        raise error
    assert raised.value.message


def test_so_is_what_torch_says_when_the_system_refuses() -> None:
    with pytest.raises(OutOfMemory), memory_errors():
        torch.empty(2**60, dtype=torch.uint8)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), OSError(errno.ENOENT, "No such file")], ids=repr)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, memory_errors():
        raise error
    assert raised.value is error


def config(processes: int = 1, **ppo: Any) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "model": {"policy": {"path": "m"}},
            "prompts": {"inline": ["It"]},
            "rewards": [{"name": "s", "rule": {"name": "sentiment"}}],
            "ppo": {"steps": 1, **ppo},
            "resources": {"processes": processes},
        }
    )


@pytest.mark.parametrize(
    ("ppo", "processes", "half"),
    [
        ({"batch_size": 8}, 1, 4),
        ({"batch_size": 8, "minibatch_size": 5}, 1, 2),
        ({"batch_size": 8, "microbatch_size": 3}, 1, 1),
        ({"batch_size": 8, "microbatch_size": 1}, 1, None),
        ({"batch_size": 8, "microbatch_size": 6}, 4, 1),
        ({"batch_size": 4}, 4, None),
    ],
)
def test_half_a_microbatch(ppo: dict[str, Any], processes: int, half: int | None) -> None:
    """Of what one process really computes at once: of a minibatch of 8 on 4 processes that is 2."""
    assert config(processes, **ppo).half_microbatch_size == half


def test_a_checkpoint_belongs_to_the_run_whatever_its_microbatch() -> None:
    before = config(batch_size=8)
    after = before.with_microbatch_size(4)
    assert after.microbatch_size == 4
    assert config_digest(after) == config_digest(before)
    assert config_digest(config(batch_size=7)) != config_digest(before)
