"""Texts of models and servers cannot steer the terminal that shows them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from jobs.views import JobError
from ppo_client.output import error_text, jobs_table, samples_table, show_job
from ppo_client.progress import Board, PlainLines
from ppo_client.terminal import visible
from ppo_client.updates import Happened, Snapshot
from tests.support.client_values import event_view, job_view, sample_view

# A new title, a cleared screen, a link, a bell, the same in one byte, backspaces over what stands there, a turned line.
NASTY = "\x1b]0;pwned\x07\x1b[2J\x1b]8;;http://evil\x1b\\x\x9b31m\x08\x08ok\r\u202egnp.exe[bold]b[/bold]"


def steers(shown: str) -> list[str]:
    """The control characters in what was printed."""
    return [char for char in shown if not char.isprintable() and char != "\n"]


def test_what_stays_and_what_is_shown() -> None:
    assert visible("a\tb\nc é 日本 🎉") == "a\tb\nc é 日本 🎉"
    assert visible("\x1b[2J\r\x00\x9b") == "\ufffd[2J\ufffd\ufffd\ufffd"


@pytest.mark.parametrize("kind", ["table", "job", "error", "samples", "lines", "board"])
def test_no_command_lets_it_through(kind: str) -> None:
    out = io.StringIO()
    console = Console(file=out, highlight=False, width=200, color_system=None)
    error = JobError(code="x", category="infra", message=NASTY, suggestion=NASTY, log_tail=NASTY, step=1, attempt=1)
    job = job_view(name=NASTY, labels={"a": NASTY})
    if kind == "table":
        console.print(jobs_table([job]))
    elif kind == "job":
        show_job(console, job)
    elif kind == "error":
        console.print(error_text(error))
    elif kind == "samples":
        console.print(samples_table([sample_view(NASTY, 1.0, response=NASTY)]))
    else:
        display = PlainLines(console) if kind == "lines" else Board(console)
        display.show(Snapshot(cursor="1", job=job))
        display.show(Happened(cursor="2", event=event_view(2, message=NASTY)))
        display.close()
    assert "pwned" in out.getvalue()
    assert steers(out.getvalue()) == []


@pytest.mark.parametrize(
    ("category", "shown"), [("user", False), ("config", False), ("internal", True), ("data", True)]
)
def test_the_end_of_the_log_is_shown_where_it_may_tell_more(category: str, shown: bool) -> None:
    error = JobError(code="x", category=category, message="m", log_tail="Traceback", step=1, attempt=1)
    assert ("Traceback" in error_text(error).plain) is shown


def test_a_job_takes_one_line_in_a_narrow_terminal() -> None:
    out = io.StringIO()
    jobs = [job_view(id="job_" + "0" * 26, name="a-rather-long-name-of-a-job")] * 2
    Console(file=out, width=80, color_system=None).print(jobs_table(jobs))
    assert len(out.getvalue().splitlines()) == 3
