"""Archives over HTTP and gRPC: parts that fit, models that load, and what cannot be had."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from api.rpc.v1 import job_service_pb2 as pb
from jobs import lifecycle
from jobs.auth import LOCAL, Principal
from jobs.exporting import ask_export
from jobs.lifecycle import Claim
from jobs.service import submit
from ppo_client import archive
from ppo_client.client import PPOClient
from ppo_engine import checkpoint
from ppo_engine.config import LoRAConfig, ModelSource
from ppo_engine.events import CheckpointSaved
from ppo_engine.models.lora import Adapters
from ppo_engine.models.overlay import trained_tensors
from ppo_engine.models.policy import LanguageModel
from tests.support.attempts import claimed, record_steps, submitted
from tests.support.errand_desk import alive, desk
from tests.support.grpc_api import refusal, stub_at
from tests.support.http_api import App, Served
from tests.support.problem_json import pointers, problem
from tests.support.specs import make_spec
from tests.support.tiny_models import byte_tokenizer, tiny_llama

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT's

IDS = torch.tensor([[5, 6, 7, 8]])


def saved(app: App | Served, write: Callable[[Path], None], step: int = 2, **spec: Any) -> str:
    """A job with a real checkpoint whose `model/` is what `write` makes; returns the job's id."""
    db, where = app.context.db, app.context.settings
    held = claimed(db, submit(db, LOCAL, make_spec(**spec), roots=where.model_roots)[0].id)
    record_steps(db, held, 1, step)
    record(app, held, write, step)
    (where.run_dir(held.lease.job_id).tensorboard).mkdir()
    return held.lease.job_id


def record(app: App | Served, held: Claim, write: Callable[[Path], None], step: int) -> None:
    run = app.context.settings.run_dir(held.lease.job_id)
    made = checkpoint.save(
        run, step=step, attempt=1, identity={}, values={"step": step}, tensors={}, folders={"model": write}
    )
    path = str(made.path.relative_to(run.root))
    event = CheckpointSaved(step=step, path=path, size_bytes=made.size_bytes, sha256=made.sha256, score=float(step))
    lifecycle.record_checkpoint(app.context.db, held.lease, event)


def small(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 9000)


def members(tar: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened}  # type: ignore[union-attr]


def test_a_tar_is_the_same_every_time_and_any_part_of_it_fits(sqlite_app: App):
    path = f"/v1/jobs/{saved(sqlite_app, small)}/checkpoints/2/archive"
    whole = sqlite_app.get(path)
    etag, size = whole.headers["etag"], len(whole.content)
    assert whole.headers["accept-ranges"] == "bytes"
    assert sqlite_app.get(path).content == whole.content
    places = [
        (0, 0),
        (0, 511),
        (511, 513),
        (1, size - 1),
        (size - 1, size - 1),
        (700, 2_304_000),
        (size - 2000, size + 9),
    ]
    for first, last in places:
        part = sqlite_app.get(path, headers={"Range": f"bytes={first}-{last}", "If-Range": etag})
        assert part.status_code == 206
        assert part.content == whole.content[first : last + 1]
        assert part.headers["content-range"] == f"bytes {first}-{min(last, size - 1)}/{size}"
        assert int(part.headers["content-length"]) == len(part.content)
    assert sqlite_app.get(path, headers={"Range": "bytes=-700"}).content == whole.content[-700:]
    assert sqlite_app.get(path, headers={"Range": f"bytes={size - 5}-"}).content == whole.content[-5:]


@pytest.mark.parametrize(
    "headers",
    [
        {"Range": "bytes=5-", "If-Range": '"another"'},
        {"Range": "bytes=5-", "If-Range": "Mon, 30 Nov 2026 23:59:59 GMT"},
        {"Range": "bytes=0-1,5-6"},
        {"Range": "bytes=6-5"},
        {"Range": "bytes=-"},
        {"Range": "lines=1-2"},
        {"Range": "bytes=x"},
    ],
    ids=str,
)
def test_a_range_that_does_not_count_gets_everything(sqlite_app: App, headers: dict[str, str]):
    path = f"/v1/jobs/{saved(sqlite_app, small)}/checkpoints/2/archive"
    response = sqlite_app.get(path, headers=headers)
    assert (response.status_code, len(response.content)) == (200, int(response.headers["content-length"]))
    assert members(response.content).keys() == {
        "manifest.json",
        "model/config.json",
        "model/model.safetensors",
        "state.json",
    }


def test_a_range_behind_the_end_is_told_the_end(sqlite_app: App):
    path = f"/v1/jobs/{saved(sqlite_app, small)}/checkpoints/2/archive"
    head = sqlite_app.request("HEAD", path)
    size = int(head.headers["content-length"])
    assert (head.status_code, head.content) == (200, b"")
    refused = sqlite_app.get(path, headers={"Range": f"bytes={size}-"})
    problem(refused, 416, "range_not_satisfiable")
    assert refused.headers["content-range"] == f"bytes */{size}"
    problem(sqlite_app.get(path, headers={"Range": "bytes=-0"}), 416, "range_not_satisfiable")
    known = sqlite_app.get(path, headers={"If-None-Match": head.headers["etag"]})
    assert (known.status_code, known.content) == (304, b"")


def llama(folder: Path) -> None:
    tiny_llama(folder, seed=3)


def unpacked(app: App, path: str, target: Path, **params: str) -> Path:
    """The archive at `path`, verified as the client does."""
    response = app.get(path, params=params)
    assert response.status_code == 200, response.text
    archive.unpack(iter([response.content]), target, sha256=response.headers["x-archive-sha256"])
    return target


def test_an_exported_model_loads_and_is_the_engines(sqlite_app: App, tmp_path: Path):
    job_id = saved(sqlite_app, llama, name="good | `films`")
    folder = unpacked(sqlite_app, f"/v1/jobs/{job_id}/export", tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    engine = LanguageModel(AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path / "same", seed=3)).eval())
    with torch.no_grad():
        ours = engine.head(engine.trunk(IDS, torch.ones_like(IDS), use_cache=False))
        assert torch.allclose(loaded(input_ids=IDS).logits, ours, atol=1e-5)
    assert AutoTokenizer.from_pretrained(folder)("good")["input_ids"] == byte_tokenizer()("good")["input_ids"]
    assert (folder / "generation_config.json").is_file()
    card = (folder / "README.md").read_text()
    assert card.startswith('---\nlibrary_name: "transformers"\n')
    assert 'base_model: "org/model"' in card
    assert "# good | 'films'" in card
    assert f"step 2 of 5, job `{job_id}`" in card
    same = sqlite_app.get(f"/v1/jobs/{job_id}/export", params={"step": "best", "form": "full"})
    assert members(same.content)["README.md"].decode() == card


def test_an_exported_adapter_loads_on_its_base(sqlite_app: App, tmp_path: Path):
    base = AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path / "base"), dtype=torch.float32).eval()
    adapters = Adapters(base, LoRAConfig(rank=2), ModelSource(path="base"))
    with torch.no_grad():
        for tensor in trained_tensors(base).values():
            tensor.fill_(0.1)
        wanted = base(input_ids=IDS).logits
    job_id = saved(sqlite_app, adapters.save, model__lora={"rank": 2})
    folder = unpacked(sqlite_app, f"/v1/jobs/{job_id}/export", tmp_path / "out", form="adapter")
    fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32).eval()
    with torch.no_grad():
        assert torch.allclose(PeftModel.from_pretrained(fresh, folder)(input_ids=IDS).logits, wanted, atol=1e-5)
    assert 'library_name: "peft"' in (folder / "README.md").read_text()
    refused = problem(sqlite_app.get(f"/v1/jobs/{job_id}/export?form=full"), 400, "invalid_argument")
    assert pointers(refused) == {"/form": "form_unavailable"}


def test_an_adapter_is_merged_by_a_worker_when_the_whole_model_is_wanted(sqlite_app: App, tmp_path: Path):
    db, home = sqlite_app.context.db, sqlite_app.context.settings.home
    base = tiny_llama(home / "models" / "base")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    adapters = Adapters(model, LoRAConfig(rank=2), ModelSource(path="base"))
    with torch.no_grad():
        for tensor in trained_tensors(model).values():
            tensor.fill_(0.1)
        wanted = model(input_ids=IDS).logits
    spec = {"model": {"policy": {"path": "base"}, "lora": {"rank": 2}}, "resources": {"device": "cpu"}}
    job_id = saved(sqlite_app, adapters.save, **spec)
    path = f"/v1/jobs/{job_id}/export"
    problem(sqlite_app.get(path), 503, "no_worker")
    alive(db)
    assert ask_export(db, LOCAL, job_id, 2) == ask_export(db, LOCAL, job_id, 2)
    left = sqlite_app.context.settings.run_dir(job_id).exports / "step-00000001-1"
    left.mkdir(parents=True)
    with desk(db, home):
        folder = unpacked(sqlite_app, path, tmp_path / "out", form="merged")
    assert not left.exists()
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        assert torch.allclose(loaded(input_ids=IDS).logits, wanted, atol=1e-5)
        assert not torch.allclose(AutoModelForCausalLM.from_pretrained(base)(input_ids=IDS).logits, wanted, atol=1e-3)
    assert AutoTokenizer.from_pretrained(folder)("good")["input_ids"] == byte_tokenizer()("good")["input_ids"]
    assert 'library_name: "transformers"' in (folder / "README.md").read_text()
    assert not (folder / "adapter_config.json").exists()
    again = sqlite_app.get(path)  # without a worker: it is there
    assert again.status_code == 200


def test_a_merge_that_fails_says_why(sqlite_app: App):
    db, home = sqlite_app.context.db, sqlite_app.context.settings.home
    base = tiny_llama(home / "models" / "gone")
    adapters = Adapters(AutoModelForCausalLM.from_pretrained(base), LoRAConfig(rank=2), ModelSource(path="gone"))
    job_id = saved(sqlite_app, adapters.save, model={"policy": {"path": "gone"}, "lora": {"rank": 2}})
    shutil.rmtree(base)
    with desk(db, home):
        refused = sqlite_app.get(f"/v1/jobs/{job_id}/export")
    assert refused.json()["code"] in ("errand_refused", "errand_failed")
    assert "gone" in refused.json()["detail"]


def test_tensorboard_files_come_as_they_are_now(sqlite_app: App, tmp_path: Path):
    job_id = saved(sqlite_app, small)
    path = f"/v1/jobs/{job_id}/tensorboard/archive"
    problem(sqlite_app.get(path), 404, "not_found")
    events = sqlite_app.context.settings.run_dir(job_id).tensorboard / "events.out.tfevents.1"
    events.write_bytes(b"one")
    first = sqlite_app.get(path)
    events.write_bytes(b"one two")
    folder = unpacked(sqlite_app, path, tmp_path / "out")
    assert (folder / events.name).read_bytes() == b"one two"
    stale = sqlite_app.get(path, headers={"Range": "bytes=5-", "If-Range": first.headers["etag"]})
    assert stale.status_code == 200


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("step=7", 404, "not_found"),
        ("step=best&form=adapter", 400, "invalid_argument"),
        ("step=worst", 400, "invalid_argument"),
        ("step=-1", 400, "invalid_argument"),
        ("form=gguf", 400, "invalid_argument"),
        ("frm=full", 400, "invalid_argument"),
    ],
)
def test_what_cannot_be_exported_is_refused(sqlite_app: App, query: str, status: int, code: str):
    job_id = saved(sqlite_app, small)
    problem(sqlite_app.get(f"/v1/jobs/{job_id}/export?{query}"), status, code)


def test_a_job_without_a_checkpoint_or_of_another_has_nothing_to_export(sqlite_app: App):
    db = sqlite_app.context.db
    waiting, theirs = submitted(db, LOCAL), submitted(db, Principal("bob"))
    for job_id in (waiting, theirs, "job_x"):
        for tail in ("export", "export?step=best", "tensorboard/archive", "checkpoints/1/archive"):
            problem(sqlite_app.get(f"/v1/jobs/{job_id}/{tail}"), 404, "not_found")


@pytest.mark.slow
def test_the_client_goes_on_after_a_real_break(served: Served, tmp_path: Path):
    job_id = saved(served, small)
    with PPOClient(served.http) as client:
        chosen = client.choose_checkpoint(job_id)
        with client._http.stream(f"/v1/jobs/{job_id}/checkpoints/2/archive") as response:
            first = next(response.iter_raw(100_000))
        (tmp_path / f".out.{chosen.sha256}.part").write_bytes(first)
        client.download(job_id, tmp_path / "out")
        client.export(job_id, tmp_path / "model", step="best", form="full")
        (served.context.settings.run_dir(job_id).tensorboard / "events").write_bytes(b"x")
        client.download_tensorboard(job_id, tmp_path / "tb")
    manifest = (tmp_path / "out" / "manifest.json").read_bytes()
    assert hashlib.sha256(manifest).hexdigest() == chosen.sha256
    assert {path.name for path in (tmp_path / "model").iterdir()} >= {"README.md", "config.json", "model.safetensors"}
    assert (tmp_path / "tb" / "events").read_bytes() == b"x"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_grpc_sends_the_same_bytes(served: Served):
    job_id = saved(served, small)
    (served.context.settings.run_dir(job_id).tensorboard / "events").write_bytes(b"x")
    with PPOClient(served.http) as client, stub_at(served.grpc) as stub:
        calls = {
            "checkpoints/2/archive": lambda n: stub.DownloadCheckpoint(
                pb.DownloadCheckpointRequest(job_id=job_id, step=2, offset=n), timeout=20
            ),
            "export": lambda n: stub.ExportModel(pb.ExportModelRequest(job_id=job_id, offset=n), timeout=60),
            "tensorboard/archive": lambda n: stub.DownloadTensorBoard(
                pb.DownloadTensorBoardRequest(job_id=job_id, offset=n), timeout=20
            ),
        }
        for path, call in calls.items():
            with client._http.stream(f"/v1/jobs/{job_id}/{path}") as response:
                whole, etag = b"".join(response.iter_raw()), response.headers["etag"]
            for offset in (0, 700, len(whole)):
                header, *chunks = call(offset)
                assert (header.header.size_bytes, f'"{header.header.sha256}"') == (len(whole), etag)
                assert b"".join(part.chunk for part in chunks) == whole[offset:]
            beyond = refusal(lambda call=call, whole=whole: list(call(len(whole) + 1)))
            assert (beyond.code, beyond.reason) == (grpc.StatusCode.OUT_OF_RANGE, "range_not_satisfiable")
        bad = refusal(lambda: list(stub.ExportModel(pb.ExportModelRequest(job_id=job_id, form="x"), timeout=60)))
        assert bad.reason == "invalid_argument"


def test_a_card_keeps_addresses_and_texts_to_itself(sqlite_app: App):
    rewards = [{"name": "server", "http": {"url": "http://127.0.0.1:1/secret-path"}}]
    job_id = saved(sqlite_app, small, rewards=rewards, labels={"team": "hidden"}, prompts={"inline": ["my own prompt"]})
    found = members(sqlite_app.get(f"/v1/jobs/{job_id}/export").content)
    card = found["README.md"].decode()
    assert not any(secret in card for secret in ("secret-path", "hidden", "my own prompt"))
    assert json.loads(found["manifest.json"])["files"]["README.md"]["size"] == len(found["README.md"])
