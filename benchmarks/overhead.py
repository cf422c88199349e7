"""What the service costs a run: seconds from submit to the first rollout, and its steps against the engine alone.

    python -m benchmarks.overhead [--rounds 5] [--steps 20] [--out FILE.json]

`ppo up` runs meanwhile, as a user has it, and is idle when the engine is measured alone. Both train the same spec with
the same seed in turn, so what disturbs the machine disturbs both. A step is what the run itself measures
(`time/ppo/total`); the whole is from the first rollout to the end, checkpoint and database writes included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import machine
from benchmarks.setting_up import REPOSITORY
from ppo_engine.events import Phase, PhaseEntered, StepDone, parse
from tests.support.embedded_service import MODELS, embedded_service
from tests.support.tiny_models import tiny_llama

START_SECONDS = 1.0
"""From submit to the first rollout, on an idle worker."""
SLOWER = 0.03
"""Most that a run may lose by the service."""
THREADS = "1"
PAUSE_SECONDS = 20.0
"""For the worker to notice that a slot is free, and for its next engine to import."""


@dataclass(frozen=True)
class Timing:
    """One run."""

    start_seconds: float
    """From submit, or from the start of the process, to the first rollout."""
    step_seconds: float
    """Median of its steps but the first."""
    train_seconds: float
    """From the first rollout to the end."""


def spec(model: str, steps: int) -> dict[str, Any]:
    """The example spec, on a model, for some steps."""
    document: dict[str, Any] = json.loads((REPOSITORY / "examples" / "specs" / "austen-positive.json").read_text())
    document["model"] = {"policy": {"path": model}}
    document["ppo"] |= {"steps": steps}
    return document


def alone(document: Mapping[str, Any], roots: Sequence[Path]) -> Timing:
    """`python -m ppo_engine run` by itself."""
    config = {key: value for key, value in document.items() if key not in ("name", "labels", "retry")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wanted.json"
        path.write_text(json.dumps(config))
        command = [sys.executable, "-m", "ppo_engine", "run", str(path), "--out", f"{folder}/run", "--threads", THREADS]
        command += [part for root in roots for part in ("--root", str(root))]
        started = time.perf_counter()
        env = {**os.environ, "OMP_NUM_THREADS": THREADS}
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
        ) as process:
            events = [(time.perf_counter(), parse(line)) for line in process.stdout or ()]
        ended = time.perf_counter()
    first = next(at for at, event in events if isinstance(event, PhaseEntered) and event.phase is Phase.ROLLOUT)
    steps = [event.scalars["time/ppo/total"] for _, event in events if isinstance(event, StepDone)]
    return Timing(first - started, statistics.median(steps[1:]), ended - first)


def through_service(http: httpx.Client, document: Mapping[str, Any]) -> Timing:
    """The same, submitted. Times are the database's, of events that are written as they happen."""
    job = http.post("/v1/jobs", json=document).raise_for_status().json()
    url = f"/v1/jobs/{job['id']}"
    while not job["done"]:
        time.sleep(0.5)
        job = http.get(url).raise_for_status().json()
    if job["state"] != "succeeded":
        raise RuntimeError(f"the job {job['state']}: {job['error']}")
    events = http.get(f"{url}/events").raise_for_status().json()["items"]
    times = {event["type"]: datetime.fromisoformat(event["time"]) for event in events}
    rows = http.get(f"{url}/metrics", params={"keys": "time/ppo/total"}).raise_for_status().json()
    steps = rows["series"]["time/ppo/total"]
    return Timing(
        # The first rollout begins when the models are loaded, which is what the engine calls started.
        (times["started"] - times["submitted"]).total_seconds(),
        statistics.median(steps[1:]),
        (times["succeeded"] - times["started"]).total_seconds(),
    )


def compare(http: httpx.Client, document: Mapping[str, Any], roots: Sequence[Path], rounds: int) -> dict[str, Any]:
    """Alternate; every submit finds an idle worker with an engine that has had the time to import."""
    ours, theirs = [], []
    for _ in range(rounds):
        time.sleep(PAUSE_SECONDS)
        ours.append(through_service(http, document))
        time.sleep(PAUSE_SECONDS)
        theirs.append(alone(document, roots))
    pairs = list(zip(ours, theirs, strict=True))
    return {
        "start_seconds": statistics.median(timing.start_seconds for timing in ours),
        "start_seconds_alone": statistics.median(timing.start_seconds for timing in theirs),
        "step_seconds": statistics.median(timing.step_seconds for timing in ours),
        "step_ratio": statistics.median(a.step_seconds / b.step_seconds for a, b in pairs),
        "train_ratio": statistics.median(a.train_seconds / b.train_seconds for a, b in pairs),
        "runs": [{"service": asdict(a), "alone": asdict(b)} for a, b in pairs],
    }


def main() -> None:
    """Measure, print the table, write JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "var" / "bench" / "overhead.json")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    print("| model | submit to first rollout | engine alone, from its start | step, service : alone | whole |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        tiny_llama(home / "models" / "tiny")
        with (
            embedded_service(home, {"PPO_ENGINE_THREADS": THREADS}) as running,
            httpx.Client(base_url=running.url) as http,
        ):
            for model in ("tiny", "austen-2m"):
                found = compare(http, spec(model, arguments.steps), [home / "models", MODELS], arguments.rounds)
                results[model] = found
                print(
                    f"| {model} | {found['start_seconds']:.2f} s (≤ {START_SECONDS}) "
                    f"| {found['start_seconds_alone']:.1f} s "
                    f"| {found['step_ratio']:.3f} (≤ {1 + SLOWER}) | {found['train_ratio']:.3f} |",
                    flush=True,
                )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
