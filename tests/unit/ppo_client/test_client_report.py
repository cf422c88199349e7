"""The page and the picture: whole, self-contained, and safe with any text."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser

from jobs.states import JobState
from jobs.views import JobError
from ppo_client import page, plots
from ppo_client.client import PPOClient
from ppo_client.comparison import Comparison, Pair
from ppo_client.report import write_report
from tests.support.client_values import ended, event_view, metrics_view, sample_view
from tests.support.scripted_http import json_reply, serve

EVIL = '<script>alert("x")</script> & $name'


@cache
def picture() -> str:
    return plots.draw(metrics_view(30), kl_target=6.0, formats=("svg",))["svg"].decode()


def rendered(**changes: object) -> str:
    job = ended(name=EVIL, spec={"prompts": {"inline": [EVIL]}}, **changes)
    pairs = [Pair(EVIL, sample_view(EVIL, -0.5, response=EVIL), sample_view(EVIL, 0.5, response=EVIL))]
    guard = event_view(3, type="guard", message=f"guard: {EVIL}")
    return page.render(job, [("Policy", EVIL)], picture(), Comparison(pairs), [guard])


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
    # Heading, title, fact, guard, prompt, two responses, spec: none was left out and none was taken for a template.
    assert text.count("&lt;script&gt;") == 8
    assert text.count("$name") == 8


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


def test_an_evaluated_run_is_compared_on_its_evaluation_set(tmp_path):
    job = ended(best_checkpoint_step=3, stop_reason="early_stop")
    metrics = metrics_view(3, **{"env/reward_mean": [0.1, 0.2, 0.3]})
    metrics = metrics.model_copy(
        update={
            "steps": [0, *metrics.steps],
            "times": [metrics.times[0], *metrics.times],
            "series": {"env/reward_mean": [None, 0.1, 0.2, 0.3], "eval/reward_mean": [0.05, None, None, 0.4]},
        }
    )
    before = sample_view("The concert was", 0.05, step=0, response="dull").model_copy(update={"evaluation": True})
    after = sample_view("The concert was", 0.4, step=3, response="grand").model_copy(update={"evaluation": True})
    guard = event_view(7, type="guard", message="guard: objective/kl above 25 (warn)")

    def page_of(*items):
        return json_reply({"items": [item.model_dump(mode="json") for item in items]})

    replies = [json_reply(value.model_dump(mode="json")) for value in (job, metrics)]
    replies += [page_of(before), page_of(after), page_of(event_view(1, message="claimed by w"), guard)]
    with serve(replies) as server, PPOClient(server.url) as client:
        report = write_report(client, "job_01", tmp_path)
    assert [asked.path.partition("samples?")[2] for asked in server.asked[2:4]] == [
        "step=0&evaluation=true&limit=64",
        "evaluation=true&limit=64",
    ]
    text = report.html.read_text("utf-8")
    for part in ("Before training", "After step 3", "dull", "grand", "0.05 → 0.4", "early_stop", "step 3", "above 25"):
        assert part in text
    assert "claimed by w" not in text


def test_a_run_without_an_evaluation_is_compared_on_its_first_and_last_steps(tmp_path):
    replies = [json_reply(value.model_dump(mode="json")) for value in (ended(), metrics_view(2))]
    replies += [json_reply({"items": []})] * 2
    for step in (1, 2):
        replies.append(json_reply({"items": [sample_view("She was", 0.1, step=step).model_dump(mode="json")]}))
    replies.append(json_reply({"items": []}))
    with serve(replies) as server, PPOClient(server.url) as client:
        text = write_report(client, "job_01", tmp_path).html.read_text("utf-8")
    assert "First 5 steps" in text
    assert "evaluation=false" in server.asked[4].path
    assert "Guards" not in text
