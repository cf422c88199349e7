"""`run SPEC --out DIR [--resume [CHECKPOINT]]`: one run as a process. `replay CASE`: recorded steps again.

`wait`: import everything now, and become the run whose arguments come as a line of standard input.

Standard output carries events, one JSON object a line; everything else goes to standard error. SIGTERM or SIGINT:
finish the step, checkpoint, exit 0. A closed standard input pipe means that the supervisor is gone: leave within
seconds. SIGUSR1 dumps all stacks to standard error. Exit code 0: finished or stopped; 1: failed, with a `failed` event;
2: usage.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TextIO

from pydantic import ValidationError

from ppo_engine.config import TrainConfig, expand_preset
from ppo_engine.egress import Egress, RewardHost
from ppo_engine.errors import EngineError, InvalidConfig
from ppo_engine.events import Event, Failed
from ppo_engine.program import spare
from ppo_engine.rundir import RunDir

ORPHAN_SECONDS = 3.0
"""How long a run may live on after its supervisor: enough to leave a step that is nearly done."""
ORPHAN_EXIT = 75

log = logging.getLogger("ppo_engine")


def main(argv: list[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    pipe = _claim_stdout()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")

    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log every request, with the whole URL

    def emit(event: Event) -> None:
        pipe.write(event.model_dump_json() + "\n")
        pipe.flush()

    if arguments.command == "wait":
        arguments = parser.parse_args(["run", *spare.wait()])
    try:
        return _replay(arguments.case, pipe) if arguments.command == "replay" else _run(arguments, emit)
    except EngineError as error:
        log.error("%s: %s", error.code, error.message)
        emit(_failed(error))
        return 1


def _run(arguments: argparse.Namespace, emit: Callable[[Event], None]) -> int:
    from ppo_engine.program.run import Run, RunOptions, resume_folder  # noqa: PLC0415 - torch is slow to import: usage errors first

    config = _read_spec(arguments.spec)
    out = RunDir(arguments.out.resolve())
    out.root.mkdir(parents=True, exist_ok=True)
    if not out.spec.exists():
        out.spec.write_text(config.model_dump_json(indent=1))  # nulls too: a preset must not come back over them
    resume = None if arguments.resume is None else resume_folder(out, arguments.resume or None)
    options = RunOptions(
        out=out,
        roots=[root.resolve() for root in arguments.root or [Path.cwd()]],
        attempt=arguments.attempt,
        resume=resume,
        threads=arguments.threads,
        prune=not arguments.keep_checkpoints,
        egress=Egress(arguments.reward_host or (), _token(arguments.reward_token_file)),
    )
    run = Run(config, options, emit)
    _stop_on_signals(run.stop)
    _leave_with_supervisor(run.stop)
    try:
        run()
    except EngineError as error:
        log.exception("run failed")
        emit(_failed(error, run))
        return 1
    except Exception as error:
        log.exception("run failed")
        emit(_failed(EngineError(f"{type(error).__name__}: {error}"), run))
        return 1
    return 0


def _replay(case: Path, pipe: TextIO) -> int:
    from ppo_engine.program.replay import replay  # noqa: PLC0415 - as above

    for step in replay(case):
        pipe.write(json.dumps(step) + "\n")
        pipe.flush()
    return 0


def _failed(error: EngineError, run: object = None) -> Failed:
    return Failed(
        code=error.code,
        category=error.category,
        message=error.message,
        retryable=error.retryable,
        suggestion=error.advice,
        phase=getattr(run, "phase", None),
        step=getattr(run, "step", 0),
    )


def _read_spec(path: Path) -> TrainConfig:
    try:
        document = expand_preset(json.loads(path.read_bytes()))
        return TrainConfig.model_validate_json(json.dumps(document))
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InvalidConfig("; ".join(problems)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{path} is not JSON: {error}") from error


def _reward_host(text: str) -> RewardHost:
    try:
        return RewardHost.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _token(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"the reward token in {path} cannot be read: {type(error).__name__}") from error


def _claim_stdout() -> TextIO:
    """Keep standard output for events: whatever else prints goes to standard error."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe


def _stop_on_signals(stop: Callable[[], None]) -> None:
    def handler(_signal: int, _frame: FrameType | None) -> None:
        stop()

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)


def _leave_with_supervisor(stop: Callable[[], None]) -> None:
    """End soon after the other end of the standard input pipe is closed; a terminal or a file is not watched."""
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return

    def watch() -> None:
        while os.read(0, 1024):
            pass
        log.warning("the supervisor is gone")
        stop()
        threading.Event().wait(ORPHAN_SECONDS)
        os._exit(ORPHAN_EXIT)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ppo_engine", description="PPO for language models.")
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run", help="train one run")
    run.add_argument("spec", type=Path, metavar="SPEC", help="JSON file with the run's configuration")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="run directory")
    run.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="CHECKPOINT",
        help="resume from the newest valid checkpoint, or from the one named (relative to DIR)",
    )
    run.add_argument(
        "--root", type=Path, action="append", metavar="DIR", help="where paths in SPEC resolve (repeatable)"
    )
    run.add_argument(
        "--reward-host",
        type=_reward_host,
        action="append",
        metavar="HOST[:PORT]",
        help="a reward server that may be called although its address is not public (repeatable)",
    )
    run.add_argument(
        "--reward-token-file", type=Path, metavar="FILE", help="bearer token for the hosts named by --reward-host"
    )
    run.add_argument("--attempt", type=int, default=1, metavar="N", help="number that marks this attempt's files")
    run.add_argument("--threads", type=int, metavar="N", help="CPU threads")
    run.add_argument("--keep-checkpoints", action="store_true", help="never remove an old checkpoint")
    commands.add_parser("wait", help="import everything, then become the run that a line of standard input describes")
    replay = commands.add_parser("replay", help="feed recorded steps through the optimiser; one JSON line per step")
    replay.add_argument(
        "case", type=Path, metavar="CASE.json", help="recorded case (ppo_engine/program/replay.py has its form)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
