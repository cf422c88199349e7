"""What a user does, through `ppo up` and real processes: train the small Austen model, take it, lose processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from jobs.states import JobState
from jobs.views import JobView, MetricsView
from ppo_client.client import PPOClient
from ppo_client.errors import Conflict, InvalidRequest
from ppo_client.updates import Step
from tests.support.embedded_service import ROOT, RunningService, embedded_service, processes, run, wait_for

pytestmark = pytest.mark.slow


def austen(name: str, steps: int, batch_size: int = 8, **changes: Any) -> dict[str, Any]:
    """The example spec, shortened."""
    spec = json.loads((ROOT / "examples" / "specs" / "austen-positive.json").read_text())
    spec["ppo"] = {"steps": steps, "batch_size": batch_size, "minibatch_size": 4, "ppo_epochs": 2}
    return {**spec, "name": name, "checkpoint": {"every_steps": 2, "keep_last": 2}, **changes}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with embedded_service(tmp_path_factory.mktemp("e2e") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[PPOClient]:
    with PPOClient(service.url) as connected:
        yield connected


@dataclass(frozen=True)
class Result:
    """What a run came to: its numbers, and the digest of its last checkpoint's weights."""

    series: dict[str, list[float | None]]
    weights: str


SURVIVOR_STEPS = 8
SURVIVOR = austen("survivor", SURVIVOR_STEPS, batch_size=16)


def result_of(client: PPOClient, job: JobView, folder: Path) -> Result:
    assert job.state is JobState.SUCCEEDED, job.error
    metrics = client.metrics(job.id)
    assert metrics.steps == list(range(1, SURVIVOR_STEPS + 1))
    client.download(job.id, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    return Result(lasting(metrics), manifest["files"]["model/model.safetensors"]["sha256"])


def lasting(metrics: MetricsView) -> dict[str, list[float | None]]:
    """The series that do not depend on the machine's pace."""
    machine = ("time/", "memory/", "tokens/per_second")
    return {key: values for key, values in metrics.series.items() if not key.startswith(machine)}


def test_from_submit_to_report_with_the_command(service, tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps(austen("journey", 4)))
    planned = service.ppo("plan", "spec.json", "--json", cwd=tmp_path)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    plan = json.loads(planned.stdout)
    assert (plan["probed"], plan["model"]["parameters"], plan["work"]["samples"]) == (True, 1_967_808, 32)
    watched = service.ppo("submit", "spec.json", "--watch", cwd=tmp_path)
    assert watched.returncode == 0, watched.stderr
    lines = watched.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("step ")] == ["1/4", "2/4", "3/4", "4/4"]
    assert any(line.startswith("succeeded after ") for line in lines)

    (job,) = json.loads(service.ppo("ls", "--state", "succeeded", "--json").stdout)
    assert job["name"] == "journey"
    reported = service.ppo("report", job["id"], "--to", "reports", cwd=tmp_path)
    assert reported.returncode == 0, reported.stderr
    page = (tmp_path / "reports" / f"{job['id']}.html").read_text()
    assert "<svg" in page
    assert "Mr. Darcy was" in page
    assert (tmp_path / "reports" / f"{job['id']}.png").read_bytes().startswith(b"\x89PNG")

    downloaded = service.ppo("download", job["id"], "--to", "result", cwd=tmp_path)
    assert downloaded.returncode == 0, downloaded.stderr
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "result" / "model").num_parameters() > 1_000_000

    assert "Mr. Darcy was" in service.ppo("samples", job["id"]).stdout
    assert "env/reward_mean" in service.ppo("metrics", job["id"]).stdout
    assert "4 of 4 steps" in service.ppo("show", job["id"]).stdout

    words = ("--prompt", "Mr. Darcy was", "--step", "last", "--compare", "base", "--score", "--temperature", "0")
    compared = service.ppo("generate", job["id"], *words, "--json")
    assert compared.returncode == 0, compared.stderr
    found = json.loads(compared.stdout)
    assert [(by["name"], by["step"]) for by in found["answers"]] == [("last", 4), ("base", None)]
    answers = [by["responses"][0] for by in found["answers"]]
    lines = [{"prompt": "Mr. Darcy was", "response": answer["response"]} for answer in answers]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    previewed = service.ppo("preview", "spec.json", "--texts", "texts.jsonl", "--json", cwd=tmp_path)
    assert previewed.returncode == 0, previewed.stderr
    # Asked outside of the job, the reward says of the same texts what the job's own said.
    scores = [score["total"] for score in json.loads(previewed.stdout)["scores"]]
    assert scores == pytest.approx([answer["score"] for answer in answers])


def test_an_invalid_spec_is_refused_with_every_reason(service, client, tmp_path):
    spec = austen("wrong", 4, model={"policy": {"path": "no-such-model"}}, kl={"penaltie": "kl"})
    with pytest.raises(InvalidRequest) as caught:
        client.submit(spec)
    assert "did you mean `penalty`" in str(caught.value)
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    refused = service.ppo("submit", str(tmp_path / "spec.json"))
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr


def test_a_failed_job_says_why(service, client, tmp_path):
    broken = service.home / "models" / "broken"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{}")
    (tmp_path / "spec.json").write_text(json.dumps(austen("broken", 4, model={"policy": {"path": "broken"}})))
    example = str(ROOT / "examples" / "submit_and_watch.py")
    told = run(example, "spec.json", "--url", service.url, cwd=tmp_path)
    assert told.returncode == 1
    assert "model_type" in told.stderr
    (job,) = client.list(states=[JobState.FAILED])
    assert (job.name, job.error.code, job.error.category, job.attempt) == ("broken", "model_unavailable", "user", 1)
    assert job.error.suggestion
    watched = service.ppo("watch", job.id)
    assert watched.returncode == 1
    assert "model_unavailable (user)" in watched.stdout
    assert "model_type" in service.ppo("logs", job.id).stdout
    with pytest.raises(Conflict, match="failed"):
        client.cancel(job.id)


def test_a_running_job_is_cancelled_within_its_step(service, client):
    job = client.submit(austen("endless", 100_000))
    assert any(isinstance(update, Step) for update in client.watch(job.id))
    assert service.ppo("cancel", job.id).returncode == 0
    assert client.wait(job.id, timeout_seconds=60).state is JobState.CANCELLED
    assert service.ppo("watch", job.id).returncode == 1


@pytest.fixture(scope="module")
def undisturbed(service, client, tmp_path_factory) -> Result:
    """The job that nothing happens to, run by the gRPC example."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "spec.json").write_text(json.dumps(SURVIVOR))
    example = str(ROOT / "examples" / "grpc_submit.py")
    told = run(example, "spec.json", "--address", service.grpc, cwd=folder)
    assert told.returncode == 0, told.stderr
    submitted, *steps, end = told.stdout.splitlines()
    assert [line.split(":")[0] for line in steps] == [f"step {step}" for step in range(1, SURVIVOR_STEPS + 1)]
    assert end == "succeeded"
    return result_of(client, client.get(submitted.removeprefix("submitted ")), folder / "result")


@pytest.mark.parametrize(("victim", "attempts"), [("api", 1), ("engine", 2), ("worker", 2)])
def test_a_job_outlives_the_kill_of_any_process_and_ends_the_same(
    service, client, undisturbed, tmp_path, victim, attempts
):
    job = client.submit(SURVIVOR)
    pid = wait_for(lambda: service.victim_pid(victim))
    service.wait_for_checkpoint(job.id)
    os.kill(pid, signal.SIGKILL)
    job = client.wait(job.id, timeout_seconds=120)
    assert job.attempt == attempts
    assert result_of(client, job, tmp_path / "result") == undisturbed


def test_a_job_of_two_processes_outlives_the_kill_of_one_and_obeys_a_cancel(service, client):
    wanted = {**SURVIVOR, "name": "two", "resources": {"processes": 2}, "ppo": {**SURVIVOR["ppo"], "steps": 500}}
    job = client.submit(wanted)
    service.wait_for_checkpoint(job.id)
    engine = service.victim_pid("engine")
    (second,) = [pid for pid, parent, _ in processes() if parent == engine]
    os.kill(second, signal.SIGKILL)
    wait_for(lambda: (now := client.get(job.id)).attempt == 2 and now.progress.step > 3)
    (requeued,) = [event for event in client.events(job.id) if event.type == "requeued"]
    assert requeued.data["code"] == "process_lost"
    client.cancel(job.id)
    job = client.wait(job.id, timeout_seconds=60)
    assert job.state is JobState.CANCELLED
    steps = client.metrics(job.id).steps
    assert steps == list(range(1, steps[-1] + 1))
    assert not [command for _, _, command in processes() if job.id in command]


def test_from_an_uploaded_table_to_a_merged_model(service, client, tmp_path):
    (tmp_path / "openings.csv").write_text('opening,answer\n"She was, at last,",x\nMr. Darcy was,y\n')
    added = service.ppo("datasets", "add", "openings.csv", "--json", cwd=tmp_path)
    assert added.returncode == 0, added.stderr
    prompts = {"dataset": {"id": json.loads(added.stdout)["id"], "field": "opening"}}
    model = {**austen("", 1)["model"], "lora": {"rank": 2}}
    job = client.wait(client.submit(austen("tabled", 2, prompts=prompts, model=model)).id, timeout_seconds=120)
    assert job.state is JobState.SUCCEEDED, job.error
    assert {sample.prompt for sample in client.samples(job.id)} <= {"She was, at last,", "Mr. Darcy was"}
    fetched = service.ppo("download", job.id, "--form", "merged", "--to", "merged", cwd=tmp_path)
    assert fetched.returncode == 0, fetched.stderr
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert merged.num_parameters() > 1_000_000
    assert not hasattr(merged, "peft_config")
