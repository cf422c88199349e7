"""A reward server as a component, live: a real server on a real port, which behaves as each test says."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from ppo_engine.config import OnError, RewardComponent
from ppo_engine.egress import Egress, RewardHost
from ppo_engine.errors import RewardFailed, RewardHostForbidden, RewardUnavailable
from ppo_engine.ranks import ALONE
from ppo_engine.rewards import Scorer, build_scorer, http
from ppo_engine.rewards.wire import retry_after
from tests.support.exchanges import exchange

Reply = tuple[int, Any, dict[str, str]]


def scores_of(request: dict[str, Any]) -> Reply:
    return 200, {"scores": [len(response) for response in request["responses"]]}, {}


@dataclass
class Judge:
    """A server that answers each request with what `replies` says, the last of them for ever."""

    replies: list[Callable[[dict[str, Any]], Reply]] = field(default_factory=lambda: [scores_of])
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: int = 0
    most_running: int = 0

    def take(self, request: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self.lock:
            self.requests.append(request)
            self.headers.append(headers)
            self.times.append(time.monotonic())
            reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            return reply(request)
        finally:
            with self.lock:
                self.running -= 1


def handler_of(judge: Judge) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, content, headers = judge.take(request, dict(self.headers))
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            try:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # the caller did not wait
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


class QuietServer(ThreadingHTTPServer):
    """Says nothing of callers that hang up."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@pytest.fixture
def judge() -> Iterator[Judge]:
    judge = Judge()
    server = QuietServer(("127.0.0.1", 0), handler_of(judge))
    judge.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield judge
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_PAUSE_SECONDS", 0.01)


LOCAL = Egress([RewardHost("127.0.0.1"), RewardHost("localhost")], token="s3cret")
BATCH = [exchange("x" * n, prompt=f"p{n}", answer=n) for n in range(10)]


def scorer(judge: Judge, *, egress: Egress = LOCAL, host: str = "127.0.0.1", **options: Any) -> Scorer:
    policy = {key: options.pop(key) for key in ("on_error", "max_error_rate") if key in options}
    server = {"url": f"http://{host}:{judge.port}/score?key=k", "retries": 0, **options}
    component = RewardComponent.model_validate({"name": "judge", "http": server, **policy})
    return build_scorer([component], roots=[], device=torch.device("cpu"), egress=egress)


def failure(judge: Judge, kind: type[RewardFailed] = RewardFailed, **options: Any) -> str:
    with pytest.raises(RewardFailed) as caught:
        scorer(judge, **options).score(BATCH)
    assert type(caught.value) is kind
    assert "key=" not in caught.value.message
    return caught.value.message


def reply(status: int, content: Any = b"", **headers: str) -> Callable[[dict[str, Any]], Reply]:
    return lambda request: (status, content, {name.replace("_", "-"): value for name, value in headers.items()})


def after(seconds: float) -> Callable[[dict[str, Any]], Reply]:
    def answer(request: dict[str, Any]) -> Reply:
        time.sleep(seconds)
        return scores_of(request)

    return answer


def when(gate: threading.Event) -> Callable[[dict[str, Any]], Reply]:
    """Answers when the gate is open, and never waits for it longer than a test may."""

    def answer(request: dict[str, Any]) -> Reply:
        gate.wait(30)
        return scores_of(request)

    return answer


def test_batches_are_posted_and_their_scores_put_in_place(judge: Judge) -> None:
    assert scorer(judge, batch_size=4).score(BATCH).total == [float(n) for n in range(10)]
    assert sorted(len(request["responses"]) for request in judge.requests) == [2, 4, 4]
    first = next(request for request in judge.requests if "p0" in request["prompts"])
    assert first == {
        "prompts": ["p0", "p1", "p2", "p3"],
        "responses": ["", "x", "xx", "xxx"],
        "records": [{"answer": 0}, {"answer": 1}, {"answer": 2}, {"answer": 3}],
    }
    assert judge.headers[0]["Host"] == f"127.0.0.1:{judge.port}"


def test_one_scorer_serves_many_batches(judge: Judge) -> None:
    found = scorer(judge)
    assert [found.score(BATCH[:3]).total for _ in range(3)] == [[0.0, 1.0, 2.0]] * 3


def test_requests_start_while_responses_still_come(judge: Judge) -> None:
    session = scorer(judge, batch_size=2).open(ALONE.share(5))
    for index in (4, 2):
        session.add(index, BATCH[index])
    deadline = time.monotonic() + 30
    while not judge.requests and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [request["responses"] for request in judge.requests] == [["xxxx", "xx"]]
    for index in (0, 1, 3):
        session.add(index, BATCH[index])
    assert session.close().total == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_only_so_many_requests_are_under_way(judge: Judge, concurrency: int) -> None:
    judge.replies = [after(0.1)]
    scorer(judge, batch_size=1, concurrency=concurrency).score(BATCH)
    assert judge.most_running == concurrency


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_request_is_tried_again_after_a_failure_that_may_pass(judge: Judge, status: int) -> None:
    judge.replies = [reply(status), reply(status), scores_of]
    assert scorer(judge, retries=2).score(BATCH).total[9] == 9.0
    assert len(judge.requests) == 3


def test_a_request_is_tried_again_after_no_answer_in_time(judge: Judge) -> None:
    judge.replies = [after(1.0), scores_of]
    assert scorer(judge, retries=1, timeout_seconds=0.3).score(BATCH).total[9] == 9.0
    assert len(judge.requests) == 2


def test_when_all_tries_fail_the_run_fails_and_may_be_retried(judge: Judge) -> None:
    judge.replies = [reply(503)]
    message = failure(judge, RewardUnavailable, retries=2)
    assert message == (
        f"reward `judge` could not score response 0 of 10: the reward server at 127.0.0.1:{judge.port}: "
        "it answered 503 (3 tries)"
    )
    assert RewardUnavailable.retryable


def test_pauses_grow_and_heed_retry_after_up_to_the_timeout(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_PAUSE_SECONDS", 0.2)
    judge.replies = [reply(503), reply(503), reply(429, Retry_After="1"), reply(503, Retry_After="3600"), scores_of]
    scorer(judge, retries=4, timeout_seconds=1.5).score(BATCH)
    pauses = [later - earlier for earlier, later in zip(judge.times, judge.times[1:], strict=False)]
    assert 0.1 <= pauses[0] < 0.5
    assert 0.2 <= pauses[1] < 0.7
    assert 1.0 <= pauses[2] < 1.4
    assert 1.5 <= pauses[3] < 2.4


def test_retry_after_may_be_a_date() -> None:
    assert retry_after(formatdate(time.time() + 30, usegmt=True)) == pytest.approx(30, abs=2)
    assert [retry_after(text) for text in ("", "soon", "-5", "7", formatdate(0, usegmt=True))] == [0, 0, 0, 7, 0]


@pytest.mark.parametrize("status", [400, 401, 404, 413, 204])
def test_what_the_server_will_not_take_is_not_sent_again(judge: Judge, status: int) -> None:
    judge.replies = [reply(status)]
    assert f"it answered {status}" in failure(judge, retries=3)
    assert len(judge.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(judge: Judge, status: int) -> None:
    judge.replies = [reply(status, Location="http://169.254.169.254/latest"), scores_of]
    assert "a redirect; those are not followed" in failure(judge, retries=3)
    assert len(judge.requests) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"scores": [1.0] * 9}, "returned 9 scores for 10 responses"),
        ({"scores": []}, "returned 0 scores for 10 responses"),
        ({"scores": [1.0] * 9 + ["1"]}, "returned a str instead of a number at index 9"),
        ({"scores": [[1.0]] * 10}, "returned a list instead of a number at index 0"),
        ({"scores": [True] * 10}, "returned a bool instead of a number at index 0"),
        ({"scores": 1.0}, "answered something else than"),
        ({"score": [1.0] * 10}, "answered something else than"),
        ([1.0] * 10, "answered something else than"),
        (b"<html>secret</html>", "answered something else than"),
        (b"[" * 100_000, "answered something else than"),
        (b" " * 2**21, "answered with more than 1048576 bytes"),
    ],
)
@pytest.mark.parametrize("policy", list(OnError))
def test_a_wrong_count_or_shape_ends_the_run_under_every_policy(
    judge: Judge, content: Any, reason: str, policy: OnError
) -> None:
    judge.replies = [reply(200, content)]
    message = failure(judge, retries=3, on_error=policy, max_error_rate=1.0)
    assert reason in message
    assert message.startswith("reward `judge`: the reward server at")
    assert "secret" not in message


def test_null_and_nan_are_failures_of_single_responses(judge: Judge) -> None:
    judge.replies = [reply(200, {"scores": [None, float("nan"), *range(8)]})]
    scores = scorer(judge, on_error="drop", max_error_rate=0.2).score(BATCH)
    assert scores.dropped == [True, True] + [False] * 8
    assert scores.kept == [float(n) for n in range(8)]


def test_a_failed_request_costs_its_own_responses_only(judge: Judge) -> None:
    def picky(request: dict[str, Any]) -> Reply:
        return (500, b"", {}) if "p0" in request["prompts"] else scores_of(request)

    judge.replies = [picky]
    scores = scorer(judge, batch_size=2, on_error="zero", max_error_rate=0.2).score(BATCH)
    assert scores.components["judge"] == [None, None, *[float(n) for n in range(2, 10)]]
    assert scores.total[:3] == [0.0, 0.0, 2.0]


def test_a_server_that_is_down_is_left_alone_after_a_while(judge: Judge) -> None:
    judge.replies = [reply(500)]
    found = scorer(judge, batch_size=1, concurrency=1, on_error="zero", max_error_rate=1.0)
    assert found.score(BATCH).error_fraction == 1.0
    assert len(judge.requests) == 5
    assert found.score(BATCH).error_fraction == 1.0
    assert len(judge.requests) == 5
    strict = Scorer([replace(component, on_error=OnError.FAIL) for component in found._components])
    with pytest.raises(RewardUnavailable, match=r"response 0 of 10: .* is left alone after 5 failed requests"):
        strict.score(BATCH)


def test_nobody_listening_is_unavailable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        down = Judge(port=probe.getsockname()[1])
    assert "no connection" in failure(down, RewardUnavailable, retries=1)


def test_a_server_that_drips_its_answer_is_cut_off() -> None:
    """Every byte comes in time; the whole does not."""
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                while True:
                    connection.sendall(b"H" if drip.sent else b"HTTP/1.1 200 OK\r\nX-")  # type: ignore[attr-defined]
                    drip.sent = True  # type: ignore[attr-defined]
                    time.sleep(0.05)
            except OSError:
                return

    drip.sent = False  # type: ignore[attr-defined]
    thread = threading.Thread(target=drip)
    thread.start()
    assert "no answer in time" in failure(Judge(port=listener.getsockname()[1]), RewardUnavailable, timeout_seconds=0.5)
    thread.join()
    listener.close()


def test_a_failed_component_does_not_wait_for_requests_under_way(judge: Judge) -> None:
    gate = threading.Event()
    judge.replies = [when(gate)]
    specs = [
        {"name": "judge", "http": {"url": f"http://127.0.0.1:{judge.port}/", "batch_size": 1, "timeout_seconds": 30}},
        {"name": "numeric", "rule": {"name": "numeric"}},
    ]
    found = build_scorer(
        [RewardComponent.model_validate(spec) for spec in specs], roots=[], device=torch.device("cpu"), egress=LOCAL
    )
    opener = threading.Timer(20, gate.set)
    opener.start()
    with pytest.raises(RewardFailed, match="`numeric` could not score response 0"):
        found.score([exchange("1")] * 3)
    assert not gate.is_set(), "it waited for the server"
    opener.cancel()
    gate.set()


def test_the_token_goes_to_hosts_that_the_operator_named(judge: Judge) -> None:
    scorer(judge).score(BATCH)
    assert judge.headers[0]["Authorization"] == "Bearer s3cret"


def test_the_token_goes_to_nobody_else(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppo_engine.egress.is_public", lambda address: True)
    scorer(judge, egress=Egress([RewardHost("elsewhere")], token="s3cret")).score(BATCH)
    assert "Authorization" not in judge.headers[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"])
def test_this_machine_is_refused_unless_allowed(judge: Judge, host: str) -> None:
    with pytest.raises(RewardHostForbidden, match="is not a public address"):
        scorer(judge, host=host, egress=Egress())
    assert judge.requests == []


def test_a_name_that_later_means_another_machine_is_refused(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the name is looked up anew for each attempt, checked, and the checked address connected to."""
    found = ["93.184.215.14"]

    def look_up(host: str, port: int, *args: Any, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (found[0], port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    component = scorer(judge, host="judge.example", egress=Egress())
    found[0] = "127.0.0.1"
    with pytest.raises(RewardHostForbidden, match=r"judge\.example:\d+ is at 127"):
        component.score(BATCH)
    assert judge.requests == []


def test_a_name_is_sent_as_host_while_its_address_is_connected_to(judge: Judge) -> None:
    scorer(judge, host="localhost").score(BATCH)
    assert judge.headers[0]["Host"] == f"localhost:{judge.port}"


def test_proxies_of_the_environment_are_not_used(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert scorer(judge).score(BATCH).total[9] == 9.0


def test_an_unknown_name_is_unavailable_at_once() -> None:
    with pytest.raises(RewardUnavailable, match=r"judge\.invalid cannot be looked up"):
        scorer(Judge(port=80), host="judge.invalid")


@pytest.mark.parametrize(
    "url",
    ["http:///score", "http://[::1/", "http://a:99999/", "http://a:0/", "ftp://a/", "http://u:p@a/", "http://a b/"],
)
def test_what_is_no_url_without_credentials_is_an_invalid_spec(url: str) -> None:
    with pytest.raises(ValidationError):
        RewardComponent.model_validate({"name": "j", "http": {"url": url}})


def test_an_abandoned_session_stops_its_requests(judge: Judge) -> None:
    gate = threading.Event()
    judge.replies = [when(gate)]
    session = scorer(judge, batch_size=1, timeout_seconds=30).open(ALONE.share(3))
    session.add(0, BATCH[0])
    opener = threading.Timer(20, gate.set)
    opener.start()
    session.abandon()
    assert not gate.is_set(), "it waited for the server"
    opener.cancel()
    gate.set()
