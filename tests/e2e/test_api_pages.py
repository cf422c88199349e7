"""Every example of docs/api runs as it stands there, through both doors of one live service, with the same answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from docs.twins import OTHER_SHAPES, TWINS
from tests.support import page_examples
from tests.support.embedded_service import embedded_service
from tests.support.example_values import NOT_TWICE, Keyed, values_for
from tests.support.grpc_api import METHODS
from tests.support.page_examples import Answer
from tests.support.twin_answers import differences

pytestmark = pytest.mark.slow

READS = [name for name, twin in TWINS.items() if twin.call.startswith("GET ")]
ARCHIVES = {"archive", "export", "tensorboard"}
PAIRS = sorted(name for name, twin in TWINS.items() if twin.rpc)


@dataclass(frozen=True)
class Answers:
    """What both doors said to every example."""

    http: dict[str, Answer]
    grpc: dict[str, list[Message]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    with embedded_service(tmp_path_factory.mktemp("pages") / "home", {"PPO_WARM_ENGINE": "false"}) as running:
        # Whoever makes a key needs one from then on, and an example does.
        scopes = {"scopes": ["read", "submit", "control", "keys", "admin"]}
        key = httpx.post(f"{running.url}/v1/keys", json=scopes, timeout=60).raise_for_status().json()["key"]
        yield Keyed(running.url, running.grpc, key)


@pytest.fixture(scope="module")
def answers(service: Keyed, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("answers")
    blocks = {name: block for page in page_examples.pages() for name, block in page.curl.items()}
    values: dict[str, dict[str, str]] = {}
    http: dict[str, Answer] = {}

    def run(name: str) -> None:
        http[name] = page_examples.curl(
            blocks[name],
            {**values[name], "PPO_URL": service.url, "AUTHORIZATION": f"Authorization: Bearer {service.key}"},
            folder,
        )

    for name in TWINS:
        values[name] = values_for(name, service, http)
        run(name)
    again = {name: values_for(name, service, http) for name in NOT_TWICE}
    said = page_examples.python({**values, **again}, service.grpc, service.key, folder)
    for name in READS:
        run(name)
    messages = {
        name: [GetMessageClass(METHODS[f"ppo.v1.{TWINS[name].rpc}"].output_type).FromString(one) for one in many]
        for name, many in said.items()
    }
    return Answers(http, messages)


@pytest.mark.parametrize("name", sorted(TWINS))
def test_curl_answers_as_the_page_says(answers: Answers, name: str):
    answer = answers.http[name]
    assert answer.status == TWINS[name].status, answer.body.decode("utf-8", "replace")[:2000]


@pytest.mark.parametrize("name", PAIRS)
def test_python_gets_an_answer(answers: Answers, name: str):
    assert answers.grpc[name]


@pytest.mark.parametrize("name", sorted(set(PAIRS) - set(OTHER_SHAPES) - ARCHIVES))
def test_both_doors_say_the_same(answers: Answers, name: str):
    (message,) = answers.grpc[name]
    body = answers.http[name].body or b"{}"
    assert differences(json.loads(body), message, TWINS[name].differs) == []


def test_both_doors_give_the_same_numbers(answers: Answers):
    columns = json.loads(answers.http["metrics"].body)
    (message,) = answers.grpc["metrics"]
    points = {key: [(point.step, point.value) for point in series.points] for key, series in message.series.items()}
    assert points == {
        key: [(step, value) for step, value in zip(columns["steps"], column, strict=True) if value is not None]
        for key, column in columns["series"].items()
    }
    assert len(points) == 2
    assert all(points.values())


@pytest.mark.parametrize("name", sorted(ARCHIVES))
def test_both_doors_send_the_same_archive(answers: Answers, name: str):
    first, *rest = answers.grpc[name]
    archive = answers.http[name].body
    assert b"".join(message.chunk for message in rest) == archive
    assert first.header.size_bytes == len(archive) > (1000 if name == "tensorboard" else 1_000_000)
