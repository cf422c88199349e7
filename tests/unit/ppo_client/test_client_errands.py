"""Previews and generations from the client and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ppo_client import cli
from ppo_client.client import PPOClient
from ppo_client.commands.exits import UnusableSpec
from ppo_client.errands import ErrandFailed, ErrandTimeout
from ppo_engine.errands import MAX_TEXTS
from ppo_engine.spread import spread_of
from tests.support.client_values import START
from tests.support.scripted_http import Reply, json_reply, serve

SPREAD = spread_of([0.0, 0.5, 0.5, 1.0], "aabb", [3, 4, 5, 6])
COMPONENT = {
    "name": "words",
    "weight": 0.5,
    "shadow": False,
    "scored": 4,
    "failed": 1,
    "error": None,
    "spread": SPREAD and SPREAD.model_dump(),
    "repeat_difference": 0.25,
    "seconds": 0.1,
}
PREVIEW = {
    "texts": 5,
    "groups": 2,
    "total": SPREAD and SPREAD.model_dump(),
    "components": [COMPONENT, {**COMPONENT, "name": "judge", "shadow": True, "spread": None, "scored": 0, "failed": 5}],
    "scores": [],
    "findings": [{"code": "failures", "component": "judge", "message": "it scored\x1b[31m nothing"}],
    "seconds": 1.5,
}


def responses(*pairs: tuple[str, float | None]) -> list[dict[str, Any]]:
    return [
        {"prompt": 0, "sample": n, "response": text, "response_tokens": 2, "finished": n == 0, "score": score}
        for n, (text, score) in enumerate(pairs)
    ]


def answered(name: str, step: int | None, mean_score: float | None, *pairs: tuple[str, float | None]) -> dict[str, Any]:
    facts = {"name": name, "step": step, "mean_score": mean_score, "mean_tokens": 2, "seconds": 1}
    return {**facts, "responses": responses(*pairs)}


GENERATION = {
    "prompts": ["The movie was"],
    "answers": [
        answered("best", 40, 0.75, ("great", 1.0), ("fine", 0.5)),
        answered("base", None, None, ("the of", None), ("a", None)),
    ],
}


def reply(state: str = "succeeded", **fields: Any) -> Reply:
    done = state in ("succeeded", "failed")
    times = {"create_time": START.isoformat(), "start_time": None, "end_time": None}
    view = {"id": "errand_1", "kind": "generate", "state": state, "done": done, "tries": 1, "error": None, **times}
    return json_reply({**view, **fields}, 200 if done else 202)


def ppo(*words: str) -> Any:
    return CliRunner().invoke(cli.app, list(words))


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"rewards": [{"name": "words"}], "resources": {"queue": "gpu"}}))
    return str(path)


def test_a_preview_shows_how_each_reward_lies_and_what_is_wrong(spec: str, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    lines = [{"prompt": "p", "response": "r", "answer": "4"}, {"prompt": "q", "response": "", "record": {"x": 1}}]
    texts.write_text("\n".join([json.dumps(lines[0]), "", json.dumps(lines[1]), ""]))
    with serve([reply(preview=PREVIEW), reply(preview=PREVIEW)]) as server:
        shown = ppo("preview", spec, "--texts", str(texts), "--url", server.url)
        as_json = ppo("preview", spec, "--texts", str(texts), "--url", server.url, "--json")
    assert json.loads(server.asked[0].body) == {
        "rewards": [{"name": "words"}],
        "texts": [
            {"prompt": "p", "response": "r", "record": lines[0]},
            {"prompt": "q", "response": "", "record": {"x": 1}},
        ],
        "queue": "gpu",
    }
    assert shown.exit_code == 0, shown.output
    words = next(line for line in shown.output.splitlines() if line.startswith("words"))
    assert words.split()[1:7] == ["0.5", "0.5", "0.354", "0", "to", "1"]
    assert "judge: it scored [31m nothing" in shown.output
    assert "2 prompts with several responses" in shown.output
    assert json.loads(as_json.output)["components"][0]["repeat_difference"] == 0.25


def test_answers_stand_side_by_side(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "2 + 2 =", "answer": "4"}\n')
    words = ("--prompt", "The movie was", "--prompts", str(prompts), "--step", "best", "--compare", "base", "--score")
    with serve([reply("waiting"), reply("running"), reply(generation=GENERATION)]) as server:
        shown = ppo("generate", "job_01", *words, "--samples", "2", "--temperature", "0", "--url", server.url)
    assert shown.exit_code == 0, shown.output
    first, *later = server.asked
    assert first.path.startswith("/v1/jobs/job_01/generate?timeout=")
    assert [asked.path.partition("?")[0] for asked in later] == ["/v1/errands/errand_1"] * 2
    assert json.loads(first.body) == {
        "prompts": ["The movie was", "2 + 2 ="],
        "records": [{"prompt": "The movie was"}, {"prompt": "2 + 2 =", "answer": "4"}],
        "step": "best",
        "compare_to": ["base"],
        "score": True,
        "samples_per_prompt": 2,
        "seed": 0,
        "temperature": 0.0,
    }
    lines = [line.split() for line in shown.output.splitlines() if line.strip()]
    assert lines[:4] == [
        ["The", "movie", "was"],
        ["best", "(step", "40)", "base"],
        ["+1.00", "great", "the", "of"],
        ["+0.50", "fine", "…", "a", "…"],
    ]
    assert "mean score 0.75" in shown.output


def test_an_errand_that_fails_says_why() -> None:
    error = {"code": "worker_lost", "category": "infra", "message": "It was lost.", "suggestion": "Ask.", "attempt": 2}
    with (
        serve([reply("waiting"), reply("failed", error=error)]) as server,
        PPOClient(server.url) as client,
        pytest.raises(ErrandFailed, match=r"It was lost\. Ask\."),
    ):
        client.generate("job_01", ["p"])


def test_an_answer_that_does_not_come_can_be_looked_for_later() -> None:
    with (
        serve([reply("waiting"), reply(preview=PREVIEW)]) as server,
        PPOClient(server.url) as client,
    ):
        with pytest.raises(ErrandTimeout, match="errand_1 is waiting") as caught:
            client.preview_reward([], [], timeout_seconds=0)
        found = client.errand(caught.value.errand_id).preview
    assert found is not None
    assert found.texts == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 is not JSON"),
        ('{"prompt": "p"}', "`prompt` and `response`"),
        ('\n{"prompt": "p", "response": 3}', "line 2 is not an object"),
        ('{"prompt": "p", "response": "r"}\n' * (MAX_TEXTS + 1), "at most 256"),
    ],
)
def test_texts_that_cannot_be_read_are_usage(spec: str, tmp_path: Path, text: str, message: str) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text(text)
    error = ppo("preview", spec, "--texts", str(texts)).exception
    assert isinstance(error, UnusableSpec)
    assert message in str(error)


def test_a_generation_needs_a_prompt() -> None:
    assert ppo("generate", "job_01").exit_code == 2
