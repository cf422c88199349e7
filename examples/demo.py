"""The whole journey on one machine: a real model, the embedded service, a job, its report. `make demo` runs it.

The last line of standard output is one JSON object with the result; the exit code is 0 only for a job that succeeded.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.states import JobState
from jobs.views import JobView
from ppo_client.client import PPOClient
from ppo_client.comparison import Pair
from ppo_client.errors import ClientError
from ppo_client.follow import follow
from ppo_client.output import one_line
from ppo_client.report import Report, write_report

HERE = Path(__file__).resolve().parent
HOME = HERE.parent / "var" / "demo"
SPEC = HERE / "specs" / "positive-openings.json"

console = Console(highlight=False)


def main() -> int:
    """Run the demo; returns the exit code."""
    started = time.monotonic()
    say("1/4", "a real model: SmolLM2-135M-Instruct")
    fetch_model(HOME / "models" / "smollm2-135m")
    say("2/4", "the service: ppo up")
    with embedded_service() as url, PPOClient(url) as client:
        spec = json.loads(SPEC.read_text())
        cancel_leftovers(client, spec["labels"])
        job = client.submit(spec)
        say("3/4", f"training: {job.id}, {job.progress.steps_total} steps; it shall go on more positively")
        job = follow(client, job.id, console)
        say("4/4", "the result")
        report = write_report(client, job.id, HOME / "reports")
    show(report)
    print(json.dumps(summary(job, report, time.monotonic() - started)))
    return 0 if job.state is JobState.SUCCEEDED else 1


def say(number: str, text: str) -> None:
    console.print(f"\n[bold]{number}[/]  {text}", soft_wrap=True)


def fetch_model(folder: Path) -> None:
    """Get the model unless it is there."""
    subprocess.run([sys.executable, str(HERE / "fetch_smollm2.py"), str(folder)], check=True)


@contextmanager
def embedded_service() -> Iterator[str]:
    """A service on free ports for as long as the block lasts; gives its URL."""
    # Tethered, so that not even a kill -9 of this script leaves it running.
    command = [sys.executable, "-m", "ppo_client.tether", "ppo_client", "up", "--json"]
    command += ["--home", str(HOME), "--http-port", "0", "--grpc-port", "0"]
    # A group of its own: a Ctrl-C is this script's to handle.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    ) as service:
        try:
            assert service.stdout is not None
            ready = service.stdout.readline()
            if not ready:
                raise SystemExit("the service did not start")
            places = json.loads(ready)
            console.print(f"      REST {places['url']}   gRPC {places['grpc']}   logs {HOME / 'logs'}", soft_wrap=True)
            yield places["url"]
        finally:
            service.terminate()
            service.wait()


def cancel_leftovers(client: PPOClient, labels: dict[str, str]) -> None:
    """End jobs of a demo that was interrupted: the service would rightly finish them first."""
    for job in client.list(states=[JobState.QUEUED, JobState.RUNNING], labels=labels):
        client.cancel(job.id)
        client.wait(job.id)


def show(report: Report) -> None:
    """Before and after, and where the pictures are."""
    console.print(samples_table(report.pairs))
    console.print(f"\nreward, KL and entropy over the steps: [bold]{report.png}[/]", soft_wrap=True)
    console.print(f"the whole report: [bold]{report.html}[/]\n", soft_wrap=True)


def samples_table(pairs: Sequence[Pair]) -> Table:
    """Each prompt's response with the median score, of the first and of the last steps."""
    table = Table(box=None, padding=(0, 2, 1, 0), pad_edge=False, header_style="dim")
    for title in ("prompt", "first steps", "last steps"):
        table.add_column(title, overflow="fold", ratio=1 if title == "prompt" else 2)
    for pair in pairs:
        cells = [
            Text("-") if sample is None else Text(f"{sample.score:+.2f} {one_line(sample.response)}")
            for sample in (pair.before, pair.after)
        ]
        table.add_row(Text(pair.prompt), *cells)
    return table


def summary(job: JobView, report: Report, seconds: float) -> dict[str, object]:
    """The demo's result as JSON."""
    return {
        "state": job.state,
        "steps": report.steps,
        "reward_first": rounded(report.reward_first),
        "reward_last": rounded(report.reward_last),
        "kl_last": rounded(report.kl_last),
        "seconds": round(seconds, 1),
        "report": str(report.html),
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClientError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
