"""One run's statistics as a run of Weights & Biases, under exactly the keys of `ppo_engine.stats`.

The package is an extra (`wandb`), imported only when a spec asks for it. It finds its key itself, in the environment
that the worker passes on or in the user's own netrc; nothing here reads or writes it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ppo_engine.config import TrainConfig, WandbConfig
from ppo_engine.errors import WandbUnavailable, WandbUnreachable
from ppo_engine.events import Sample
from ppo_engine.rundir import RunDir
from ppo_engine.stats import StepStats

log = logging.getLogger(__name__)

STEP = "step"
"""The x axis of every chart. wandb's own counter cannot go back, and a run that is rolled back does."""
_BINS = 64
_COLUMNS = ("prompt", "response", "score", "kl", "response_tokens", "finished", "evaluation")


def make_wandb(config: TrainConfig, run: RunDir, identity: Mapping[str, Any]) -> WandbWriter:
    """Open the wandb run of this run directory: a new one, or after a resume the same one again.

    Args:
        config: the whole configuration; `logging.wandb` must be given. All of it is shown as the run's config.
        identity: what the run is (digest of its spec, fingerprints); shown with the config.

    Raises:
        WandbUnavailable: the package is missing, or has no key it can use.
        WandbUnreachable: the server does not answer.
    """
    wanted = config.logging.wandb
    if wanted is None:
        raise ValueError("the spec has no logging.wandb")
    try:
        import wandb  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise WandbUnavailable("logging.wandb is set, and the package wandb is not installed") from error
    return WandbWriter(wandb, _open(wandb, wanted, config, run, identity))


def _open(wandb: Any, wanted: WandbConfig, config: TrainConfig, run: RunDir, identity: Mapping[str, Any]) -> Any:
    run.root.mkdir(parents=True, exist_ok=True)
    try:
        opened = wandb.init(
            id=_run_id(run),
            resume="allow",
            name=run.root.name,
            dir=str(run.root),
            project=wanted.project,
            entity=wanted.entity,
            group=wanted.group,
            tags=list(wanted.tags),
            mode=str(wanted.mode),
            config={**config.model_dump(mode="json", exclude_none=True), "identity": dict(identity)},
            # Nothing but what we log: no console output, source code, git remotes or machine names.
            settings=wandb.Settings(console="off", disable_git=True, disable_code=True, x_disable_meta=True),
        )
        opened.define_metric("*", step_metric=STEP)
    except wandb.errors.CommError as error:
        raise WandbUnreachable(f"the wandb server does not answer: {_first_line(error)}") from error
    except wandb.errors.Error as error:
        raise WandbUnavailable(f"wandb cannot open a run: {_first_line(error)}") from error
    return opened


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _run_id(run: RunDir) -> str:
    """The id of this directory's wandb run: drawn once, and kept beside what it names."""
    path = run.root / "wandb-run-id"
    if not path.exists():
        path.write_text(f"{secrets.token_hex(8)}\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()


class WandbWriter:
    """Writes steps to an open run. Trouble after the start is logged once and costs the charts, never the training."""

    def __init__(self, wandb: Any, run: Any) -> None:
        self._wandb = wandb
        self._run = run
        self._failed = False

    def write(self, stats: StepStats, samples: Sequence[Sample]) -> None:
        """Write one step: scalars, histograms, and samples as a table."""
        self._try(lambda: self._run.log({STEP: stats.step, **stats.scalars, **self._drawn(stats, samples)}))

    def close(self) -> None:
        """Send what is left, and end the run."""
        self._try(self._run.finish)

    def _drawn(self, stats: StepStats, samples: Sequence[Sample]) -> dict[str, Any]:
        drawn: dict[str, Any] = {}
        for key, values in stats.histograms.items():
            finite = np.asarray(values, dtype=np.float64)
            finite = finite[np.isfinite(finite)]
            if finite.size:  # a histogram of nothing cannot be drawn
                drawn[key] = self._wandb.Histogram(np_histogram=np.histogram(finite, bins=_BINS))
        if samples:
            rows = [[getattr(sample, column) for column in _COLUMNS] for sample in samples]
            drawn["samples"] = self._wandb.Table(columns=list(_COLUMNS), data=rows)
        return drawn

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            if not self._failed:
                log.warning("wandb: %s: %s; the run goes on without it", type(error).__name__, _first_line(error))
            self._failed = True
