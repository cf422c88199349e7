"""Runs of several processes: the numbers of one, and one fate for all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ppo_engine.events import CheckpointSaved, Event, Failed, Finished, Started, StepDone, parse
from ppo_engine.rundir import RunDir
from tests.support.engine_program import command, of_type, run
from tests.support.tiny_models import tiny_llama
from tests.support.tolerances import GOLDEN

pytestmark = pytest.mark.slow

ONE = {"device": "cpu", "precision": "fp32", "processes": 1}
TWO = ONE | {"processes": 2}
PLAIN: dict[str, Any] = {
    "model": {"policy": {"path": "policy"}},
    "prompts": {"inline": ["The movie was", "My dinner", "It"]},
    "rewards": [{"name": "mood", "rule": {"name": "sentiment"}}],
    "generation": {"max_new_tokens": 8},
    "ppo": {"steps": 3, "batch_size": 5, "minibatch_size": 3, "microbatch_size": 2, "ppo_epochs": 2},
    "optimizer": {"learning_rate": 1e-3, "max_grad_norm": 1.0},
}
EVERYTHING: dict[str, Any] = PLAIN | {
    "model": {"policy": {"path": "policy"}, "trainable_layers": 1, "ema_decay": 0.9},
    "prompts": {"file": {"path": "prompts.jsonl"}},
    "rewards": [
        {"name": "mood", "rule": {"name": "sentiment"}},
        {"name": "sum", "rule": {"name": "numeric"}, "on_error": "drop", "max_error_rate": 0.5},
    ],
    "ppo": PLAIN["ppo"]
    | {
        "batch_size": 7,
        "minibatch_size": 4,
        "samples_per_prompt": 2,
        "score_scaling": "normalise",
        "whiten_rewards": True,
        "entropy_coef": 0.01,
        "gradient_accumulation_steps": 2,
    },
    "kl": {"penalty": "full", "placement": "loss", "adaptive": {"target": 0.1}},
    "ptx": {"texts": {"inline": ["She was happy.", "It rained all day.", "Why?"]}, "batch_size": 3},
    "evaluation": {"prompts": {"file": {"path": "questions.jsonl"}}, "every_steps": 2},
}
"""Frozen layers, hidden states of the reference, texts, dropped responses, an evaluation: all that is shared out."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    tiny_llama(root / "policy")
    lines = [{"prompt": f"{n} and {n} is", "answer": str(2 * n)} for n in range(6)]
    (root / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[3:]))
    del lines[2]["answer"]
    (root / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def shared_numbers(event: StepDone) -> dict[str, float]:
    """What must not depend on the number of processes: all but times and memory."""
    own = ("time/", "memory/", "tokens/per_second")
    return {key: value for key, value in event.scalars.items() if not key.startswith(own)}


@pytest.mark.parametrize("wanted", [PLAIN, EVERYTHING], ids=["plain", "everything"])
def test_two_processes_give_the_numbers_of_one(models: Path, tmp_path: Path, wanted: dict[str, Any]) -> None:
    steps = []
    for name, resources in (("one", ONE), ("two", TWO)):
        code, events, log = run(models, tmp_path / name, wanted | {"resources": resources})
        assert code == 0, log
        steps.append(of_type(StepDone, events))
    assert [event.step for event in steps[0]] == [event.step for event in steps[1]]
    for one, two in zip(*steps, strict=True):
        expected, found = shared_numbers(one), shared_numbers(two)
        assert expected.keys() == found.keys()
        assert found == pytest.approx(expected, rel=GOLDEN, abs=GOLDEN), one.step
        assert [sample.response for sample in two.samples] == [sample.response for sample in one.samples]
    files = sorted(path.name for path in (tmp_path / "two").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "one").iterdir())
    assert (tmp_path / "two" / "samples.jsonl").read_text().count("\n") == sum(len(e.samples) for e in steps[1])


def test_two_processes_resume_bit_for_bit(models: Path, tmp_path: Path) -> None:
    whole, cut = RunDir(tmp_path / "whole"), RunDir(tmp_path / "cut")
    wanted = PLAIN | {"resources": TWO, "checkpoint": {"every_steps": 1}}
    assert run(models, whole.root, wanted, "--keep-checkpoints")[0] == 0
    shutil.copytree(whole.root, cut.root)
    for step in (2, 3):
        subprocess.run(["rm", "-r", str(cut.checkpoint(step, 1))], check=True)
    code, events, log = run(models, cut.root, wanted, "--resume", "--attempt", "2", "--keep-checkpoints")
    assert code == 0, log
    assert of_type(Started, events)[0].step == 1
    for name in ("model/model.safetensors", "value.safetensors", "optimizer.safetensors", "rng.safetensors"):
        assert (whole.checkpoint(3, 1) / name).read_bytes() == (cut.checkpoint(3, 2) / name).read_bytes(), name


class Pair:
    """A long run of two processes."""

    def __init__(self, models: Path, out: Path) -> None:
        wanted = PLAIN | {"resources": TWO, "ppo": PLAIN["ppo"] | {"steps": 100_000}}
        self.main = subprocess.Popen(
            command(models, out, wanted), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        while not isinstance(self.next(), StepDone):
            pass
        children = Path(f"/proc/{self.main.pid}/task/{self.main.pid}/children").read_text().split()
        (self.other,) = map(int, children)

    def next(self) -> Event:
        assert self.main.stdout is not None
        return parse(self.main.stdout.readline())

    def rest(self) -> list[Event]:
        """All it still says, to its end."""
        assert self.main.stdout is not None
        return [parse(line) for line in self.main.stdout.read().splitlines()]

    def other_lives(self) -> bool:
        try:
            state = Path(f"/proc/{self.other}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return False
        return state != "Z"

    def close(self) -> None:
        self.main.kill()
        self.main.wait()
        for pipe in (self.main.stdin, self.main.stdout):
            if pipe is not None:
                pipe.close()
        with suppress(ProcessLookupError):
            os.kill(self.other, signal.SIGKILL)


@pytest.fixture
def pair(models: Path, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(models, tmp_path)
    yield pair
    pair.close()


def test_sigterm_of_the_group_ends_both_behind_a_checkpoint(pair: Pair) -> None:
    for process in (pair.other, pair.main.pid):
        os.kill(process, signal.SIGTERM)
    events = pair.rest()
    assert pair.main.wait(timeout=60) == 0
    finished = of_type(Finished, events)[-1]
    assert finished.outcome == "stopped"
    assert of_type(CheckpointSaved, events)[-1].step == finished.step
    assert not pair.other_lives()


def test_a_killed_process_fails_the_run(pair: Pair) -> None:
    os.kill(pair.other, signal.SIGKILL)
    failed = of_type(Failed, pair.rest())
    assert pair.main.wait(timeout=60) == 1
    assert [(event.code, event.retryable) for event in failed] == [("process_lost", True)]
    assert failed[0].message == "process 1 of 2 died: signal 9"
    assert failed[0].step >= 1


def test_a_process_that_hangs_fails_the_run(pair: Pair) -> None:
    os.kill(pair.other, signal.SIGSTOP)
    failed = of_type(Failed, pair.rest())
    assert pair.main.wait(timeout=60) == 1
    assert [event.code for event in failed] == ["process_lost"]
    assert "no sign of life" in failed[0].message
    assert not pair.other_lives()


def test_both_leave_when_the_supervisor_is_gone(pair: Pair) -> None:
    assert pair.main.stdin is not None
    pair.main.stdin.close()
    pair.main.wait(timeout=60)
    wait_for_end(pair)


def test_the_other_leaves_when_the_main_one_is_killed(pair: Pair) -> None:
    pair.main.kill()
    pair.main.wait()
    wait_for_end(pair)


def wait_for_end(pair: Pair) -> None:
    for _ in range(600):
        if not pair.other_lives():
            return
        signal.sigtimedwait([], 0.05)
    pytest.fail("the other process lives on")


def test_what_one_process_cannot_score_is_the_runs_reason(models: Path, tmp_path: Path) -> None:
    """The second response is the other process': the main one waits for its score in vain."""
    lines = [{"prompt": "1 and 1 is", "answer": "2"}, {"prompt": "no answer"}]
    (models / "unanswered.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    wanted = PLAIN | {
        "prompts": {"file": {"path": "unanswered.jsonl"}, "shuffle": False},
        "rewards": [{"name": "sum", "rule": {"name": "numeric"}}],
        "ppo": {"steps": 1, "batch_size": 2, "minibatch_size": 2},
        "resources": TWO,
    }
    code, events, _ = run(models, tmp_path, wanted)
    failed = of_type(Failed, events)
    assert code == 1
    assert [event.code for event in failed] == ["reward_failed"]
    assert "`sum` could not score response 0 of 1" in failed[0].message
