"""`errand KIND REQUEST`: short work outside of any run, in a process that ends with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel, ValidationError

from ppo_engine import runtime
from ppo_engine.egress import Egress
from ppo_engine.errands import Answer, ErrandKind, ExportWork, GenerationWork, PreviewRequest
from ppo_engine.errors import InvalidConfig
from ppo_engine.events import Answered
from ppo_engine.plans import ProbeRequest
from ppo_engine.program.again import Place
from ppo_engine.program.export import export
from ppo_engine.program.generate import generate
from ppo_engine.program.preview import preview_reward
from ppo_engine.program.probe.look import probe
from ppo_engine.program.verify_resume import verify_resume
from ppo_engine.rundir import RunDir
from ppo_engine.verification import VerificationWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the caller lets an errand use."""

    roots: Sequence[Path]
    """Where paths of models resolve."""
    runs: Path | None = None
    """Folder of the run directories, for errands about a job."""
    scratch: Path | None = None
    """Folder for what is removed again. Default: that of the request."""
    threads: int | None = None
    egress: Egress = field(default_factory=Egress)


def do_errand(kind: str, request: Path, setting: Setting) -> Answered:
    """Do what a file asks for.

    Raises:
        EngineError: it cannot be done.
    """
    model, work = _WORK[ErrandKind(kind)]
    try:
        asked = model.model_validate_json(request.read_bytes())
    except OSError as error:
        raise InvalidConfig(f"{request} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InvalidConfig("; ".join(problems)) from error
    with runtime.memory_errors():
        answer = work(asked, replace(setting, scratch=setting.scratch or request.resolve().parent))
    return Answered(answer=json.loads(answer.model_dump_json()))


def _preview(asked: PreviewRequest, setting: Setting) -> Answer:
    return preview_reward(asked, roots=setting.roots, egress=setting.egress, threads=setting.threads)


def _generate(asked: GenerationWork, setting: Setting) -> Answer:
    run = _run(asked.job_id, setting)
    return generate(asked, run=run, roots=setting.roots, egress=setting.egress, threads=setting.threads)


def _probe(asked: ProbeRequest, setting: Setting) -> Answer:
    return probe(asked.config, roots=setting.roots, runs=setting.runs, egress=setting.egress)


def _export(asked: ExportWork, setting: Setting) -> Answer:
    return export(asked, run=_run(asked.job_id, setting), roots=setting.roots, threads=setting.threads)


def _verify_resume(asked: VerificationWork, setting: Setting) -> Answer:
    place = Place(
        run=_run(asked.job_id, setting),
        scratch=setting.scratch or Path.cwd(),
        roots=setting.roots,
        egress=setting.egress,
        threads=setting.threads,
    )
    return verify_resume(asked, place)


def _run(job_id: str, setting: Setting) -> RunDir:
    if setting.runs is None:
        raise InvalidConfig("an errand about a job needs --runs")
    return RunDir(setting.runs / job_id)


_WORK: Mapping[ErrandKind, tuple[type[BaseModel], Callable[..., Answer]]] = {
    ErrandKind.PREVIEW_REWARD: (PreviewRequest, _preview),
    ErrandKind.GENERATE: (GenerationWork, _generate),
    ErrandKind.PROBE: (ProbeRequest, _probe),
    ErrandKind.EXPORT: (ExportWork, _export),
    ErrandKind.VERIFY_RESUME: (VerificationWork, _verify_resume),
}
