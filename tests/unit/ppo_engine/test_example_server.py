"""examples/reward_server.py as a process, asked by a component as a job would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from ppo_engine.config import RewardComponent
from ppo_engine.egress import Egress, RewardHost
from ppo_engine.errors import RewardFailed
from ppo_engine.rewards import Scorer, build_scorer
from tests.support.exchanges import exchange
from tests.support.source_tree import ROOT


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, str(ROOT / "examples" / "reward_server.py"), "--port", "0", "--token", "s3cret"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().removeprefix("listening on ").strip()
        server.terminate()


def scorer(url: str, token: str | None = "s3cret", **options: object) -> Scorer:
    component = RewardComponent.model_validate({"name": "news", "http": {"url": url, "retries": 0}, **options})
    egress = Egress([RewardHost("127.0.0.1")], token)
    return build_scorer([component], roots=[], device=torch.device("cpu"), egress=egress)


def test_the_example_scores_what_is_new(url: str) -> None:
    batch = [
        exchange("the cat sat", prompt="The dog"),
        exchange("a a b c", known=["c"]),
        exchange("", prompt="x"),
    ]
    scores = scorer(url, on_error="zero", max_error_rate=0.5).score(batch)
    assert scores.components["news"] == [pytest.approx(2 / 3), 0.5, None]


@pytest.mark.parametrize(("change", "status"), [({"token": "wrong"}, 401), ({"token": None}, 401)])
def test_the_example_wants_its_token(url: str, change: dict[str, str | None], status: int) -> None:
    with pytest.raises(RewardFailed, match=f"it answered {status}"):
        scorer(url, **change).score([exchange("a")])


def test_the_example_answers_nowhere_else(url: str) -> None:
    with pytest.raises(RewardFailed, match="it answered 404"):
        scorer(url + "s").score([exchange("a")])
