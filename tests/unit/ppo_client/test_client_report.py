"""The page and the picture: whole, self-contained, and safe with any text."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser

from jobs.states import JobState
from jobs.views import JobError
from ppo_client import page, plots
from ppo_client.comparison import Pair
from tests.support.client_values import ended, metrics_view, sample_view

EVIL = '<script>alert("x")</script> & $name'


@cache
def picture() -> str:
    return plots.draw(metrics_view(30), kl_target=6.0, formats=("svg",))["svg"].decode()


def rendered(**changes: object) -> str:
    job = ended(name=EVIL, spec={"prompts": {"inline": [EVIL]}}, **changes)
    pairs = [Pair(EVIL, sample_view(EVIL, -0.5, response=EVIL), sample_view(EVIL, 0.5, response=EVIL))]
    return page.render(job, [("Policy", EVIL)], picture(), pairs)


class Balanced(HTMLParser):
    """Knows which elements are open."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_for_nothing_from_elsewhere():
    text = rendered()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert {"svg", "table", "details"} <= parser.seen
    assert not parser.seen & {"script", "link", "img", "iframe"}
    assert not re.search(r'(?:src|href)="(?!#)', text)


def test_texts_of_models_and_users_stay_texts():
    text = rendered()
    assert "<script" not in text
    # Heading, title, fact, prompt, two responses, spec: none was left out and none was taken for a template.
    assert text.count("&lt;script&gt;") == 7
    assert text.count("$name") == 7


def test_a_failed_job_says_why():
    error = JobError(
        code="non_finite", category="config", message="the loss is NaN", suggestion="Lower the rate.", attempt=1,
        log_tail="Traceback <b>",
    )  # fmt: skip
    text = rendered(state=JobState.FAILED, error=error)
    for part in ("non_finite", "the loss is NaN", "Lower the rate.", "Traceback &lt;b&gt;"):
        assert part in text


def test_pictures_are_drawn_for_runs_of_one_step_and_none():
    for steps in (1, 0):
        assert plots.draw(metrics_view(steps), kl_target=6.0, formats=("png",))["png"].startswith(b"\x89PNG")
