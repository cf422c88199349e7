"""The `ppo` command: exit codes, JSON, and errors in one readable block."""

from __future__ import annotations

import io
import json
import sys

import pytest

from jobs.states import JobState
from ppo_client import cli, errors
from ppo_client.commands.exits import Exit, exit_code
from ppo_client.home import PortInUse
from tests.support.client_values import START, ended, event_view, job_view, metrics_view, sample_view
from tests.support.scripted_http import event_stream, json_reply, problem, serve


@pytest.fixture
def ppo(monkeypatch, capsys):
    """Run the command; gives exit code, standard output and standard error."""
    monkeypatch.delenv("PPO_KEY", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ppo", *words])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        return int(caught.value.code or 0), captured.out, captured.err

    return run


def frames(*, end_state: JobState) -> str:
    job = job_view().model_dump_json()
    step = json.dumps({"step": 1, "time": START.isoformat(), "metrics": {"env/reward_mean": 0.25, "objective/kl": 1.5}})
    event = event_view(1, message="claimed by worker-1").model_dump_json()
    parts = [("job", "0.0", job), ("event", "1.0", event), ("step", "1.1", step)]
    parts.append(("end", "1.1.end", ended(end_state).model_dump_json()))
    return "".join(f"event: {name}\nid: {place}\ndata: {data}\n\n" for name, place, data in parts)


def job_reply(job):
    return json_reply(job.model_dump(mode="json"))


def test_every_command_explains_itself(ppo):
    code, out, _ = ppo("--help")
    assert code == 0
    for command in [
        "up",
        "plan",
        "submit",
        "ls",
        "show",
        "watch",
        "logs",
        "metrics",
        "samples",
        "cancel",
        "resume",
        "checkpoints",
        "download",
        "report",
    ]:
        assert command in out
        assert ppo(command, "--help")[0] == 0


def test_the_version_is_told_without_a_service(ppo):
    code, out, _ = ppo("--version")
    assert (code, out.split()[0]) == (Exit.DONE, "ppo-service")
    assert out.split()[1][0].isdigit()


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://host", "host"])
def test_a_url_without_its_scheme_is_told_what_to_write(ppo, url):
    code, _, err = ppo("ls", "--url", url)
    assert code == Exit.INVALID
    assert f"`{url}` is no URL of a service: write http://HOST:PORT" in err


def test_who_has_no_key_is_told_how_to_give_one(ppo):
    with serve([problem(401, detail="this service needs an API key")]) as server:
        code, _, err = ppo("ls", "--url", server.url)
    assert code == Exit.REFUSED
    assert "--key or PPO_KEY gives a key" in err


def test_a_place_that_cannot_be_written_is_named(ppo):
    nothing = json_reply({"items": [], "next_page_token": None})
    told = json_reply(metrics_view(1).model_dump(mode="json"))
    with serve([job_reply(ended()), told, *[nothing] * 5]) as server:
        code, _, err = ppo("report", "job_01", "--to", "/proc/nowhere", "--url", server.url)
    assert (code, err) == (Exit.OBSTACLE, "error: /proc/nowhere cannot be used: No such file or directory\n")


def test_a_model_root_that_is_not_there_stops_the_start(ppo, tmp_path):
    code, _, err = ppo("up", "--home", str(tmp_path), "--model-root", "/nowhere")
    assert code == Exit.INVALID
    assert "/nowhere" in err


def test_a_number_that_json_does_not_know_is_named(ppo, tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text('{"kl": {"init_kl_coef": NaN}}')
    code, _, err = ppo("submit", str(spec))
    assert code == Exit.INVALID
    assert "NaN is no number that JSON knows" in err


def test_submit_reads_standard_input(ppo, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"name": "x"}'))
    with serve([job_reply(job_view())]) as server:
        code, out, _ = ppo("submit", "-", "--url", server.url)
    assert code == Exit.DONE
    assert "ppo watch job_01" in out
    assert json.loads(server.asked[0].body) == {"name": "x"}


@pytest.mark.parametrize(("text", "message"), [("{", "not JSON"), ("[1]", "a JSON object, not a list")])
def test_a_spec_that_is_no_json_object_is_usage(ppo, tmp_path, text, message):
    spec = tmp_path / "spec.json"
    spec.write_text(text)
    code, out, err = ppo("submit", str(spec))
    assert (code, out) == (Exit.INVALID, "")
    assert message in err
    assert "Traceback" not in err


def test_a_missing_spec_is_usage(ppo, tmp_path):
    code, _, err = ppo("submit", str(tmp_path / "none.json"))
    assert code == Exit.INVALID
    assert "No such file" in err


def test_an_invalid_spec_shows_every_problem(ppo, tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text("{}")
    wrong = [{"pointer": f"/{name}", "code": "missing", "detail": "is required"} for name in ("name", "model")]
    with serve([problem(422, detail="the spec cannot be run", errors=wrong)]) as server:
        code, _, err = ppo("submit", str(spec), "--url", server.url)
    assert code == Exit.INVALID
    assert err.splitlines() == ["error: the spec cannot be run", "  /name: is required", "  /model: is required"]


def test_submit_and_watch_ends_with_the_jobs_end(ppo, tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text("{}")
    for state, expected in ((JobState.SUCCEEDED, Exit.DONE), (JobState.FAILED, Exit.JOB_FAILED)):
        replies = [job_reply(job_view()), event_stream(frames(end_state=state)), job_reply(ended(state))]
        with serve(replies) as server:
            code, out, _ = ppo("submit", str(spec), "--watch", "--url", server.url)
        assert code == expected
        assert "claimed by worker-1" in out
        assert "step 1/10  reward 0.25  kl 1.5" in out
        assert f"{state} after 1m 39s" in out


def test_watch_in_json_is_one_document_a_line(ppo):
    with serve([event_stream(frames(end_state=JobState.CANCELLED)), job_reply(ended(JobState.CANCELLED))]) as server:
        code, out, _ = ppo("watch", "job_01", "--json", "--url", server.url)
    assert code == Exit.JOB_FAILED
    kinds = [next(iter(json.loads(line))) for line in out.splitlines()]
    assert kinds == ["snapshot", "happened", "step", "end"]


def test_ls_show_and_samples_print_tables_and_json(ppo):
    page = json_reply({"items": [job_view().model_dump(mode="json")], "next_page_token": None})
    with serve([page, page]) as server:
        assert "job_01" in ppo("ls", "--url", server.url)[1]
        assert json.loads(ppo("ls", "--json", "--url", server.url)[1])[0]["id"] == "job_01"
    with serve([job_reply(job_view()), job_reply(job_view())]) as server:
        shown = ppo("show", "job_01", "--url", server.url)[1]
        assert "4 of 10 steps, eta 1m 15s" in shown
        assert json.loads(ppo("show", "job_01", "--json", "--url", server.url)[1])["state"] == "running"
    samples = json_reply({"items": [sample_view("She was", 0.5, response="a\n\x1b[31mred").model_dump(mode="json")]})
    with serve([samples]) as server:
        out = ppo("samples", "job_01", "--url", server.url)[1]
        assert "+0.50" in out
        assert "\x1b" not in out
    with serve([json_reply(metrics_view(9).model_dump(mode="json"))]) as server:
        assert "▁▂▃▄▅▅▆▇█" in ppo("metrics", "job_01", "--url", server.url)[1]


def test_limits_of_ls_are_kept_over_pages(ppo):
    items = [job_view(id=f"job_{number}").model_dump(mode="json") for number in range(3)]
    with serve([json_reply({"items": items, "next_page_token": "more"})]) as server:
        out = ppo("ls", "--limit", "2", "--json", "--url", server.url)[1]
    assert [job["id"] for job in json.loads(out)] == ["job_0", "job_1"]


def test_a_label_without_value_is_usage(ppo):
    code, _, err = ppo("ls", "--label", "team")
    assert code == Exit.INVALID
    assert "NAME=VALUE" in err


def test_unknown_jobs_are_refused(ppo):
    with serve([problem(404, detail="no such job")]) as server:
        code, out, err = ppo("show", "job_02", "--url", server.url)
    assert (code, out, err.strip()) == (Exit.REFUSED, "", "error: no such job")


def test_download_into_an_existing_folder_is_refused_before_anything_is_fetched(ppo, tmp_path):
    items = [{"step": 3, "attempt": 1, "size_bytes": 9, "sha256": "0", "create_time": START.isoformat(), "links": {}}]
    with serve([json_reply({"items": items})]) as server:
        code, _, err = ppo("download", "job_01", "--to", str(tmp_path), "--url", server.url)
    assert code == Exit.OBSTACLE
    assert "exists already" in err
    assert len(server.asked) == 1


def test_resume_says_what_the_job_is_now(ppo):
    with serve([job_reply(job_view(state=JobState.QUEUED))]) as server:
        code, out, _ = ppo("resume", "job_01", "--url", server.url)
    assert (code, out.strip()) == (Exit.DONE, "job_01 is queued")
    assert (server.asked[0].method, server.asked[0].path) == ("POST", "/v1/jobs/job_01/resume")


def test_verbs_say_what_will_happen(ppo):
    running, paused = job_view(), job_view(state=JobState.PAUSED, phase=None)
    for verb, job, said in (
        ("pause", running, "job_01 will pause after its step"),
        ("pause", paused, "job_01 is paused"),
        ("stop", running, "job_01 will end well after its step"),
        ("stop", ended(), "job_01 has succeeded"),
    ):
        with serve([job_reply(job)]) as server:
            code, out, _ = ppo(verb, "job_01", "--url", server.url)
        assert (code, out.strip(), server.asked[0].path) == (Exit.DONE, said, f"/v1/jobs/job_01/{verb}")


def test_wait_ends_with_a_code_that_says_how(ppo):
    for state, code in ((JobState.SUCCEEDED, Exit.DONE), (JobState.CANCELLED, Exit.JOB_FAILED)):
        with serve([job_reply(job_view()), job_reply(ended(state))]) as server:
            assert ppo("wait", "job_01", "--url", server.url)[0] == code
    with serve([job_reply(job_view())] * 9) as server:
        assert ppo("wait", "job_01", "--timeout", "0", "--url", server.url)[0] == Exit.OBSTACLE


def test_fork_sends_the_step_and_the_overrides(ppo, tmp_path):
    (tmp_path / "patch.json").write_text('{"seed": 3}')
    parent = {"job_id": "job_00", "step": 4, "carried": ["weights", "training"]}
    made = job_view(state=JobState.QUEUED, parent=parent)
    with serve([job_reply(made), job_reply(made)]) as server:
        words = ("--from", "4", "--overrides", str(tmp_path / "patch.json"), "--name", "new")
        code, out, _ = ppo("fork", "job_00", *words, "--url", server.url)
        ppo("retry", "job_00", "--url", server.url)
    assert (code, out.strip()) == (
        Exit.DONE,
        "job_01 is queued, from step 4 of job_00 with its weights, training; follow it with: ppo watch job_01",
    )
    assert json.loads(server.asked[0].body) == {"from_step": 4, "overrides": {"seed": 3}, "name": "new"}
    assert server.asked[0].headers["Idempotency-Key"]
    assert (server.asked[1].method, server.asked[1].path) == ("POST", "/v1/jobs/job_00/retry")


def test_label_sends_a_merge_patch(ppo):
    with serve([job_reply(job_view(name="new", labels={"a": "1"}))]) as server:
        words = ("a=1", "b=x=y", "--remove", "team", "--name", "new")
        code, out, _ = ppo("label", "job_01", *words, "--url", server.url)
    assert (code, out.strip()) == (Exit.DONE, "job_01 (new) has a=1")
    (asked,) = server.asked
    assert (asked.method, asked.headers["Content-Type"]) == ("PATCH", "application/merge-patch+json")
    assert json.loads(asked.body) == {"name": "new", "labels": {"a": "1", "b": "x=y", "team": None}}
    assert ppo("label", "job_01", "nonsense", "--url", server.url)[0] == Exit.INVALID


def test_attempts_and_health_are_tables_for_people(ppo):
    error = {"code": "engine_hung", "category": "infra", "message": "silence", "attempt": 1}
    attempt = {
        "attempt": 1, "worker_id": "gpu-1", "start_time": START.isoformat(), "ready_time": None, "error": error,
        "end_time": START.isoformat(), "from_step": 0, "to_step": 4, "outcome": "requeued", "charged": True,
    }  # fmt: skip
    with serve([json_reply({"items": [attempt], "next_page_token": None})]) as server:
        out = ppo("attempts", "job_01", "--url", server.url)[1]
    for part in ("gpu-1", "0 to 4", "requeued (charged)", "engine_hung: silence"):
        assert part in out
    finding = {"name": "kl_runaway", "level": "critical", "metric": "objective/kl", "value": 40.0, "usual": None}
    finding |= {"rule": "objective/kl above 25", "advice": "Lower it.", "source": "here"}
    health = {"job_id": "job_01", "step": 9, "status": "critical", "findings": [finding]}
    with serve([json_reply(health)]) as server:
        out = ppo("health", "job_01", "--url", server.url)[1]
    assert "critical at step 9" in out
    assert "objective/kl is 40 (objective/kl above 25)\nLower it." in out


def test_a_paused_job_says_why_and_how_to_go_on(ppo):
    actions = ["cancel", "resume"]
    paused = job_view(state=JobState.PAUSED, phase=None, stop_reason="guard", allowed_actions=actions)
    with serve([job_reply(paused)]) as server:
        out = ppo("show", "job_01", "--url", server.url)[1]
    assert "paused (guard) · go on with: ppo resume job_01" in out


def test_an_early_end_and_the_best_checkpoint_are_shown(ppo):
    latest = {"env/reward_mean": 0.25, "eval/reward_mean": 0.5}
    job = ended(stop_reason="early_stop", best_checkpoint_step=3, microbatch_size=2, latest_metrics=latest)
    with serve([job_reply(job)]) as server:
        lines = ppo("show", "job_01", "--url", server.url)[1].splitlines()
    shown = [" ".join(line.split()) for line in lines]
    for part in (
        "state succeeded (early_stop)",
        "best checkpoint step 3",
        "microbatch 2 sequences, less at once since memory ran out",
        "reward 0.25 score",
        "eval reward 0.5 score",
    ):
        assert part in shown


def test_an_empty_log_prints_nothing_but_a_hint(ppo):
    with serve([json_reply({"attempt": 1, "lines": [], "truncated": False})]) as server:
        code, out, err = ppo("logs", "job_01", "--url", server.url)
    assert (code, out, err) == (Exit.DONE, "", "the log of attempt 1 is empty\n")


def test_checkpoints_are_listed_with_their_scores(ppo):
    facts = {"attempt": 1, "size_bytes": 2_500_000, "sha256": "0", "create_time": START.isoformat(), "links": {}}
    items = [{**facts, "step": 3, "score": 0.75}, {**facts, "step": 4, "score": None}]
    with serve([job_reply(ended(best_checkpoint_step=3)), json_reply({"items": items})]) as server:
        out = ppo("checkpoints", "job_01", "--url", server.url)[1]
    rows = [line.split()[:4] for line in out.splitlines()[1:]]
    assert rows == [["3", "0.75", "best", "2.4"], ["4", "2.4", "MiB", "1"]]


def test_the_best_checkpoint_is_downloaded_if_there_is_one(ppo):
    with serve([job_reply(ended())]) as server:
        code, _, err = ppo("download", "job_01", "--step", "best", "--url", server.url)
    assert code == Exit.OBSTACLE
    assert "no checkpoint that is ranked" in err


def test_answers_to_the_evaluation_set_are_asked_for_and_marked(ppo):
    answer = sample_view("The concert was", 0.4, step=0).model_copy(update={"evaluation": True})
    with serve([json_reply({"items": [answer.model_dump(mode="json")]})]) as server:
        out = ppo("samples", "job_01", "--step", "0", "--evaluation", "--url", server.url)[1]
    assert "step=0&evaluation=true" in server.asked[0].path
    assert "0 eval" in out


def test_each_error_has_its_exit_code():
    document = errors.ProblemDocument(status=400)
    assert exit_code(errors.InvalidRequest(document)) is Exit.INVALID
    assert exit_code(errors.ServiceUnreachable("x")) is Exit.UNREACHABLE
    assert exit_code(errors.ServiceUnavailable(document)) is Exit.UNREACHABLE
    assert exit_code(errors.Conflict(document)) is Exit.REFUSED
    assert exit_code(PortInUse("x")) is Exit.OBSTACLE
