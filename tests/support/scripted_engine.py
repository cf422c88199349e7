"""A small real program that speaks the engine's pipe protocol without torch, and misbehaves when told to.

The script is JSON in the spec's first inline prompt:

    {"step_seconds": 0.02, "fault": "exit_7", "at": 3, "always": false}

`fault` happens after step `at`, and with `always` false only in an attempt that starts from nothing. The weights are a
hash chain over the steps, so a resumed run that is not exact ends with another value.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_GARBAGE = "Loading checkpoint shards: 100%|####| 2/2\n"
ORPHAN_SECONDS = 1.0


class Run:
    """One run: state, stop flag, and the faults it may have."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        spec = json.loads(arguments.spec.read_text())
        self.script: dict[str, Any] = {"step_seconds": 0.02, **json.loads(spec["prompts"]["inline"][0])}
        self.steps, self.every = spec["ppo"]["steps"], spec["checkpoint"]["every_steps"]
        self.out, self.attempt, self.resumed = arguments.out, arguments.attempt, arguments.resume is not None
        self.step, self.weights, self.stopping, self.rate = 0, "", False, ""
        if self.resumed:
            self._load(Path(arguments.out) / arguments.resume)

    def __call__(self) -> int:
        self.fault_at(-1)
        emit(event="phase", phase="loading", step=self.step)
        self._started()
        self.fault_at(0)
        if "evaluation" in self.script:
            self._report(self.script["evaluation"], time=False)
        while self.step < self.steps and not self.stopping:
            self._do_step()
            if self.stopping or self.step % self.every == 0 or self.step == self.steps:
                self._save()
            self.fault_at(self.step)
        emit(event="finished", outcome="completed" if self.step == self.steps else "stopped", step=self.step)
        return 0

    def fault_at(self, step: int) -> None:
        name = self.script.get("fault")
        if name and self.script.get("at", 3) == step and (self.script.get("always") or not self.resumed):
            FAULTS[name](self)

    def _do_step(self) -> None:
        emit(event="phase", phase="rollout", step=self.step)
        time.sleep(self.script["step_seconds"] / 2)
        emit(event="phase", phase="optimise", step=self.step)
        time.sleep(self.script["step_seconds"] / 2)
        self.step += 1
        self.weights = hashlib.sha256(f"{self.weights}{self.step}{self.rate}".encode()).hexdigest()
        self._report(self.step / self.steps)

    def _report(self, score: float, *, time: bool = True) -> None:
        sample = {"prompt": "p", "response": "r", "score": score, "components": {"s": 1.0}, "response_tokens": 1}
        evaluated = {**sample, "finished": True, "evaluation": self.step == 0}
        scalars = {"env/reward_mean": score, "time/ppo/total": self.script["step_seconds"]}
        emit(
            event="step", step=self.step, scalars=scalars if time else {"eval/reward_mean": score}, samples=[evaluated]
        )

    def _started(self) -> None:
        counts = {"parameters": 1, "trainable_parameters": 1, "prompts": 1}
        emit(event="started", step=self.step, steps_total=self.steps, device="cpu", precision="fp32", **counts)

    def _save(self) -> None:
        emit(event="phase", phase="checkpoint", step=self.step)
        folder = Path(self.out) / "checkpoints" / f"step-{self.step:08d}-{self.attempt}"
        temporary = folder.with_name(f".{folder.name}.tmp")
        temporary.mkdir(parents=True)
        state = json.dumps({"step": self.step, "weights": self.weights}).encode()
        (temporary / "state.json").write_bytes(state)
        manifest = json.dumps({"state.json": hashlib.sha256(state).hexdigest()}).encode()
        (temporary / "manifest.json").write_bytes(manifest)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        facts = {"path": str(folder.relative_to(self.out)), "sha256": hashlib.sha256(manifest).hexdigest()}
        scores = self.script.get("scores")
        score = scores[self.step - 1] if scores else None
        emit(event="checkpoint", step=self.step, size_bytes=len(state), score=score, **facts)

    def _load(self, folder: Path) -> None:
        try:
            data = (folder / "state.json").read_bytes()
            wanted = json.loads((folder / "manifest.json").read_text())["state.json"]
            if hashlib.sha256(data).hexdigest() != wanted:
                raise ValueError("state.json differs from the manifest")
        except (OSError, ValueError) as error:
            failed("checkpoint_corrupt", "infra", f"{folder.name}: {error}", retryable=True)
            sys.exit(1)
        state = json.loads(data)
        self.step, self.weights = state["step"], state["weights"]


def emit(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def failed(code: str, category: str, message: str, *, retryable: bool = False, step: int = 0) -> None:
    suggestion = "Change something."
    emit(
        event="failed",
        code=code,
        category=category,
        message=message,
        retryable=retryable,
        step=step,
        suggestion=suggestion,
    )


def _run_out_of_memory(run: Run) -> None:
    emit(event="phase", phase="optimise", step=run.step)
    message = "DefaultCPUAllocator: can't allocate memory"
    failed("out_of_memory", "capacity", message, step=run.step)
    sys.exit(1)


def _fail_non_finite(run: Run) -> None:
    failed("non_finite", "config", "the loss is NaN", step=run.step)
    sys.exit(1)


def _exit_7(_run: Run) -> None:
    print("token=hf_abcdefghijklmnop\nsomething went wrong here", file=sys.stderr, flush=True)
    os._exit(7)


def _hang(_run: Run) -> None:
    while True:
        time.sleep(60)


def _ignore_stop(run: Run) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        run._do_step()


def _fork_and_exit(run: Run) -> None:
    """Leave a process behind in the group, with its id in the run directory."""
    child = os.fork()
    if child == 0:
        _hang(run)
    (Path(run.out) / "grandchild").write_text(str(child))
    os._exit(7)


def _finish_without_checkpoint(run: Run) -> None:
    emit(event="finished", outcome="completed", step=run.steps)
    sys.exit(0)


def _linger_after_finish(run: Run) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    emit(event="finished", outcome="completed", step=run.step)
    _hang(run)


def _guard(run: Run, action: str) -> None:
    rule = "env/reward_mean above 0.4"
    emit(event="guard", step=run.step, rule=rule, action=action, metric="env/reward_mean", value=0.5)


def _pause(run: Run) -> None:
    _guard(run, "pause")
    run._save()
    emit(event="finished", outcome="paused", step=run.step, reason="guard")
    sys.exit(0)


def _stop_early(run: Run) -> None:
    run._save()
    emit(event="finished", outcome="completed", step=run.step, reason="early_stop")
    sys.exit(0)


def _roll_back(run: Run) -> None:
    """Once, to step 2, and from there with other weights."""
    if run.rate:
        return
    _guard(run, "rollback")
    step, run.rate = run.step, "half"
    run._load(Path(run.out) / "checkpoints" / f"step-00000002-{run.attempt}")
    emit(event="rolled_back", step=step, to_step=run.step, learning_rate_factor=0.5)


def _write_endless_line(_run: Run) -> None:
    while True:
        sys.stdout.write("x" * 65536)


def _start(run: Run, step: int) -> None:
    run.step, now = step, run.step
    run._started()
    run.step = now


def _step_with(run: Run, **values: Any) -> None:
    sample = {"prompt": "p", "response": "r", "score": 0.5, "components": {}, "response_tokens": 1, "finished": True}
    emit(event="step", step=run.step + 1, scalars={}, samples=[{**sample, **values}])


def _save_with(run: Run, **values: Any) -> None:
    facts = {"path": f"checkpoints/step-{run.step:08d}-1", "size_bytes": 1, "sha256": "0" * 64}
    emit(event="checkpoint", step=run.step, **{**facts, **values})


def _speak_after_the_end(run: Run) -> None:
    emit(event="finished", outcome="completed", step=run.step)
    emit(event="step", step=run.step, scalars={})


FAULTS: dict[str, Callable[[Run], object]] = {
    "exit_0": lambda _run: os._exit(0),
    "exit_7": _exit_7,
    "sigkill": lambda _run: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda _run: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": _hang,
    "ignore_stop": _ignore_stop,
    "garbage": lambda _run: print(_GARBAGE, end="", flush=True),
    "half_line": lambda _run: (print('{"event": "st', end="", flush=True), os.kill(os.getpid(), signal.SIGKILL)),
    "endless_line": _write_endless_line,
    "nan": lambda _run: print('{"event": "step", "step": 4, "scalars": {"env/reward_mean": NaN}}', flush=True),
    "no_memory": _run_out_of_memory,
    "non_finite": _fail_non_finite,
    "noise": lambda _run: [print("n" * 99, file=sys.stderr) for _ in range(30_000)],
    "chatter": lambda run: [emit(event="phase", phase="rollout", step=run.step) for _ in range(20_000)],
    "fork_and_exit": _fork_and_exit,
    "finish_without_checkpoint": _finish_without_checkpoint,
    "linger_after_finish": _linger_after_finish,
    "pause": _pause,
    "stop_early": _stop_early,
    "roll_back": _roll_back,
    "leap": lambda run: emit(event="step", step=run.steps + 1, scalars={}),
    "skip": lambda run: emit(event="step", step=run.step + 2, scalars={}),
    "start_ahead": lambda run: _start(run, 2),
    "start_again": lambda run: _start(run, 0),
    "answer": lambda _run: emit(event="answered", answer={}),
    "speak_after_the_end": _speak_after_the_end,
    "score_that_is_no_number": lambda run: _step_with(run, score=float("nan")),
    "part_that_is_no_number": lambda run: _step_with(run, components={"s": float("inf")}),
    "endless_checkpoint": lambda run: _save_with(run, size_bytes=2**70),
    "restart": lambda run: emit(event="rolled_back", step=run.step, to_step=run.step + 1, learning_rate_factor=1.0),
}


def _stop_with_supervisor(run: Run) -> None:
    while os.read(0, 1024):
        pass
    run.stopping = True
    time.sleep(ORPHAN_SECONDS)
    os._exit(75)


def _wait() -> list[str]:
    """The words of a command, from a line of standard input."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)
        line += byte
    return list(json.loads(line))


def errand(request: Path) -> int:
    """Do one errand as its request says: `answer` it, or have a `fault`."""
    script = json.loads(request.read_text())
    emit(event="phase", phase="loading", step=0)
    print(f"process {os.getpid()}", file=sys.stderr, flush=True)
    match script.get("fault"):
        case "fail":
            failed("model_unavailable", "user", "there is no such model")
            return 1
        case "hang":
            time.sleep(600)
        case "exit_7":
            print("token=hf_abcdefghijklmnop\nsomething went wrong here", file=sys.stderr, flush=True)
            os._exit(7)
        case "garbage":
            print(_GARBAGE, end="", flush=True)
        case "silent":
            return 0
    emit(event="answered", answer=script["answer"])
    return 0


def main() -> int:
    words = _wait() if sys.argv[1:] == ["wait"] else sys.argv[1:]
    if words[0] == "errand":
        return errand(Path(words[2]))
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["run"])
    parser.add_argument("spec", type=Path)
    parser.add_argument("--out", required=True)
    parser.add_argument("--resume")
    parser.add_argument("--anew", action="append")
    parser.add_argument("--attempt", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--parts", type=int)
    parser.add_argument("--root", action="append")
    parser.add_argument("--keep-checkpoints", action="store_true")
    run = Run(parser.parse_args(words))
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGTERM, lambda *_: setattr(run, "stopping", True))
    threading.Thread(target=_stop_with_supervisor, args=(run,), daemon=True).start()
    print(f"process {os.getpid()}", file=sys.stderr, flush=True)
    return run()


if __name__ == "__main__":
    sys.exit(main())
