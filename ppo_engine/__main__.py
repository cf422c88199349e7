"""`run SPEC --out DIR [--resume [CHECKPOINT]]`: one run as a process. `replay CASE`: recorded steps again.

`errand KIND REQUEST`: one short piece of work, whose answer is the only event.

`wait`: import everything now, and become the run or errand whose words come as a line of standard input.

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
from typing import TYPE_CHECKING, TextIO

from pydantic import ValidationError

from ppo_engine.config import TrainConfig, expand_preset
from ppo_engine.egress import Egress, RewardHost
from ppo_engine.errands import ErrandKind
from ppo_engine.errors import EngineError, InvalidConfig
from ppo_engine.events import Event, Failed, Phase, PhaseEntered
from ppo_engine.inheritance import Part
from ppo_engine.program import spare
from ppo_engine.rundir import RunDir
from ppo_engine.settings import prepare_environment

if TYPE_CHECKING:
    from ppo_engine.program.run import Run, RunOptions
    from ppo_engine.runtime import Meeting

ORPHAN_SECONDS = 3.0
"""How long a run may live on after its supervisor: enough to leave a step that is nearly done."""
ORPHAN_EXIT = 75

log = logging.getLogger("ppo_engine")


def main(argv: list[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    prepare_environment()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    pipe = _claim_stdout()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")

    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log every request, with the whole URL

    turn = threading.Lock()

    def write(line: str) -> None:
        with turn:
            pipe.write(line)
            pipe.flush()

    def emit(event: Event) -> None:
        write(event.model_dump_json() + "\n")

    given = sys.argv[1:] if argv is None else argv
    if arguments.command == "wait":
        given = spare.wait()
        arguments = parser.parse_args(given)
    try:
        if arguments.command == "replay":
            return _replay(arguments.case, pipe)
        if arguments.command == "errand":
            return _errand(arguments, emit)
        return _run(arguments, given, emit) if arguments.rank == 0 else _run_beside(arguments, write, emit)
    except EngineError as error:
        log.error("%s: %s", error.code, error.message)
        emit(_failed(error))
        return 1


def _run(arguments: argparse.Namespace, given: list[str], emit: Callable[[Event], None]) -> int:
    """The main process of a run, mostly the only one."""
    from ppo_engine.program.launch import Crew, launched  # noqa: PLC0415 - torch is slow to import: usage errors first
    from ppo_engine.program.run import Run, resume_folder  # noqa: PLC0415 - as above

    config = _read_spec(arguments.spec)
    out = RunDir(arguments.out.resolve())
    out.root.mkdir(parents=True, exist_ok=True)
    if not out.spec.exists():
        out.spec.write_text(config.model_dump_json(indent=1))  # nulls too: a preset must not come back over them
    resume = None if arguments.resume is None else resume_folder(out, arguments.resume or None)
    crew = None

    def tell(failure: Failed) -> None:
        emit(failure.model_copy(update={"phase": run.phase, "step": run.step}))

    if config.resources.processes > 1 and not launched():
        crew = Crew(given, config.resources.processes, tell)
    run = Run(config, _options(arguments, out, resume, None if crew is None else crew.meeting), emit)
    _stop_on_signals(run.stop)
    _leave_with_supervisor(run.stop)
    failure = _failure(run)
    if crew is None:
        if failure is not None:
            tell(failure)
    elif failure is None:
        crew.close()
    else:
        crew.tell(failure if failure.code != EngineError.code else crew.lost() or failure)
    return 0 if failure is None else 1


def _run_beside(arguments: argparse.Namespace, write: Callable[[str], None], emit: Callable[[Event], None]) -> int:
    """Another process of a run, started by the main one."""
    from ppo_engine.program.launch import join, show_life  # noqa: PLC0415 - as above
    from ppo_engine.program.run import Run  # noqa: PLC0415 - as above

    show_life(write)
    config = _read_spec(arguments.spec)
    meeting = join(arguments.rank, config.resources.processes, arguments.port)
    run = Run(config, _options(arguments, RunDir(arguments.out.resolve()), None, meeting), emit)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the main process hears them, and the others follow it
    _leave_with_supervisor(run.stop)
    failure = _failure(run)
    if failure is not None:
        emit(failure)
    return 0 if failure is None else 1


def _options(arguments: argparse.Namespace, out: RunDir, resume: Path | None, meeting: Meeting | None) -> RunOptions:
    from ppo_engine.program.run import RunOptions  # noqa: PLC0415 - as above

    return RunOptions(
        out=out,
        roots=_roots(arguments),
        attempt=arguments.attempt,
        resume=resume,
        anew=frozenset(arguments.anew or ()),
        threads=arguments.threads,
        prune=not arguments.keep_checkpoints,
        egress=_egress(arguments),
        parts=arguments.parts,
        meeting=meeting,
    )


def _roots(arguments: argparse.Namespace) -> list[Path]:
    return [root.resolve() for root in arguments.root or [Path.cwd()]]


def _egress(arguments: argparse.Namespace) -> Egress:
    return Egress(arguments.reward_host or (), _token(arguments.reward_token_file))


def _failure(run: Run) -> Failed | None:
    """Run to the end; returns what went wrong."""
    try:
        run()
    except EngineError as error:
        log.exception("run failed")
        return _failed(error, run)
    except Exception as error:
        log.exception("run failed")
        return _failed(EngineError(f"{type(error).__name__}: {error}"), run)
    return None


def _errand(arguments: argparse.Namespace, emit: Callable[[Event], None]) -> int:
    from ppo_engine.program.errand import Setting, do_errand  # noqa: PLC0415 - as above

    emit(PhaseEntered(phase=Phase.LOADING, step=0))  # whoever started this hears that it began
    _leave_with_supervisor(lambda: None)
    setting = Setting(
        roots=_roots(arguments), runs=arguments.runs, threads=arguments.threads, egress=_egress(arguments)
    )
    try:
        emit(do_errand(arguments.kind, arguments.request, setting))
    except EngineError:
        raise
    except Exception as error:
        log.exception("the errand failed")
        raise EngineError(f"{type(error).__name__}: {error}") from error
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
    _add_sources(run)
    run.add_argument(
        "--anew",
        type=Part,
        action="append",
        choices=list(Part),
        help="a part of an inherited checkpoint's state that is not taken over (repeatable)",
    )
    run.add_argument("--attempt", type=int, default=1, metavar="N", help="number that marks this attempt's files")
    run.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    run.add_argument("--port", type=int, help=argparse.SUPPRESS)
    run.add_argument(
        "--parts", type=int, default=1, metavar="N", help="sample a step's responses in N turns: needs less memory"
    )
    run.add_argument("--keep-checkpoints", action="store_true", help="never remove an old checkpoint")
    errand = commands.add_parser("errand", help="do one short piece of work, and answer on the pipe")
    errand.add_argument("kind", choices=[kind.value for kind in ErrandKind], help="what to do")
    errand.add_argument("request", type=Path, metavar="REQUEST", help="JSON file with what is asked")
    errand.add_argument("--runs", type=Path, metavar="DIR", help="folder of the run directories")
    _add_sources(errand)
    commands.add_parser("wait", help="import everything, then become what a line of standard input commands")
    replay = commands.add_parser("replay", help="feed recorded steps through the optimiser; one JSON line per step")
    replay.add_argument(
        "case", type=Path, metavar="CASE.json", help="recorded case (ppo_engine/program/replay.py has its form)"
    )
    return parser


def _add_sources(command: argparse.ArgumentParser) -> None:
    """What a command may read and call, and with how many threads."""
    command.add_argument(
        "--root", type=Path, action="append", metavar="DIR", help="where paths in SPEC resolve (repeatable)"
    )
    command.add_argument(
        "--reward-host",
        type=_reward_host,
        action="append",
        metavar="HOST[:PORT]",
        help="a reward server that may be called although its address is not public (repeatable)",
    )
    command.add_argument(
        "--reward-token-file", type=Path, metavar="FILE", help="bearer token for the hosts named by --reward-host"
    )
    command.add_argument("--threads", type=int, metavar="N", help="CPU threads")


if __name__ == "__main__":
    sys.exit(main())
