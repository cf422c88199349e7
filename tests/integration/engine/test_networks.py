"""Every kind of policy, critic and reference trains, and goes on bit for bit from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import Tensor

from ppo_engine import checkpoint, runtime
from ppo_engine.build import build_trainer
from ppo_engine.config import LoRAConfig, ModelSource, TrainConfig
from ppo_engine.models.loading import load_language_model
from ppo_engine.models.lora import Adapters
from ppo_engine.models.overlay import OverlaidReference, trained_tensors
from ppo_engine.rundir import RunDir
from ppo_engine.trainer import Trainer
from ppo_engine.training_state import capture
from tests.support.gguf_files import new_model, write_gguf
from tests.support.tiny_models import tiny_classifier, tiny_gpt2, tiny_llama

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    tiny_llama(root / "policy", num_hidden_layers=3)
    tiny_gpt2(root / "gpt2")
    tiny_classifier(root / "judge")
    write_gguf(root / "m.gguf", new_model(root))
    sft = LoRAConfig(rank=2, target_modules=["q_proj", "v_proj"])
    policy = load_language_model(ModelSource(path="policy"), [root]).model
    adapters = Adapters(policy, sft, ModelSource(path="policy"))
    for tensor in trained_tensors(policy).values():
        tensor.add_(torch.randn_like(tensor), alpha=0.1)
    adapters.save(root / "sft")
    return root


@pytest.fixture(autouse=True)
def _fresh_accelerator() -> Iterator[None]:
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def config(model: dict[str, Any], **changes: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "model": {"policy": {"path": "policy"}} | model,
        "prompts": {"inline": ["The movie was", "My dinner", "It"]},
        "rewards": [{"name": "length", "rule": {"name": "length", "params": {"target": 3}}}],
        "generation": {"max_new_tokens": 6},
        "ppo": {"steps": 4, "batch_size": 4, "minibatch_size": 2, "ppo_epochs": 1},
        "optimizer": {"learning_rate": 1e-3},
        "resources": {"device": "cpu", "precision": "fp32"},
    }
    return TrainConfig.model_validate(base | changes)


class Runs:
    """Trainers of one spec in one run directory."""

    def __init__(self, wanted: TrainConfig, root: Path, out: Path) -> None:
        self.config, self.root, self.out = wanted, root, RunDir(out)
        AcceleratorState._reset_state(reset_partial_state=True)  # its precision is that of the process
        self.accelerator = runtime.start(wanted.resources, threads=1)

    def start(self, resume: Path | None = None) -> tuple[Trainer, dict[str, Any]]:
        return build_trainer(
            self.config,
            self.accelerator,
            roots=[self.root],
            on_phase=lambda _: None,
            resume=resume,
            scratch=self.out.converted,
        )

    def save(self, trainer: Trainer, identity: dict[str, Any]) -> Path:
        values, tensors = capture(trainer)
        return checkpoint.save(
            self.out,
            step=trainer.step,
            attempt=1,
            identity=identity,
            values=values,
            tensors=tensors,
            folders=trainer.models.folders(),
        ).path


def everything(trainer: Trainer) -> dict[str, Tensor]:
    """All weights of a run that can change, and the optimizer's moments."""
    models = trainer.models
    found = {name: p.detach().clone() for name, p in models.policy.named_parameters()}
    if models.average is not None:
        found |= {f"ema.{name}": t.clone() for name, t in models.average.values.items()}
    if isinstance(models.reference, OverlaidReference):
        found |= {f"ref.{name}": t.clone() for name, t in models.reference.overlay.values.items()}
    for index, state in trainer.optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{index}.{name}": t.clone() for name, t in state.items()}
    return found


KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "ema": {"ema_decay": 0.9},
    "reset": {"reference_reset_steps": 2},
    "reset to ema": {"reference_reset_steps": 1, "ema_decay": 0.5},
    "no reference": {"reference": {"none": {}}},
    "lora": {"lora": {"rank": 2}},
    "lora, gpt2": {"policy": {"path": "gpt2"}, "lora": {"rank": 2}},
    "lora on an adapter, averaged": {"adapter": {"path": "sft"}, "lora": {"rank": 2}, "ema_decay": 0.5},
    "lora, reset": {"lora": {"rank": 2}, "reference_reset_steps": 2},
    "top layer": {"trainable_layers": 1},
    "top layers, reset to ema": {"trainable_layers": 2, "reference_reset_steps": 2, "ema_decay": 0.5},
    "top layer, gpt2, checkpointed": {
        "policy": {"path": "gpt2"},
        "trainable_layers": 1,
        "gradient_checkpointing": True,
    },
    "checkpointed": {"gradient_checkpointing": True},
    "separate critic": {"value": {"separate": {}}},
    "separate critic, top layer": {"value": {"separate": {"init": "normal"}}, "trainable_layers": 1},
    "reward model as critic, lora": {"value": {"separate": {"source": {"path": "judge"}}}, "lora": {"rank": 2}},
    "gguf, lora": {"policy": {"path": "m.gguf"}, "lora": {"rank": 2}},
    "other reference": {"reference": {"source": {"path": "policy"}}},
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_as_an_uninterrupted_one(models: Path, tmp_path: Path, kind: str, precision: str) -> None:
    changes: dict[str, Any] = {"resources": {"device": "cpu", "precision": precision}}
    changes |= {"kl": {"init_kl_coef": 0.0}} if kind == "no reference" else {}
    runs = Runs(config(KINDS[kind], **changes), models, tmp_path)
    trainer, identity = runs.start()
    before, scalars, path = everything(trainer), [], None
    for step in trainer.steps():
        scalars.append(step.stats.scalars)
        if trainer.step == 2:
            path = runs.save(trainer, identity)
    resumed, _ = runs.start(path)
    again = [step.stats.scalars for step in resumed.steps()]
    whole, cut = everything(trainer), everything(resumed)
    assert set(whole) == set(cut)
    assert [name for name in whole if not torch.equal(whole[name], cut[name])] == []
    assert [s["ppo/loss/total"] for s in scalars[2:]] == [s["ppo/loss/total"] for s in again]
    assert any(not torch.equal(before[name], whole[name]) for name in before if name.startswith("language."))


def trained(models: Path, out: Path, model: dict[str, Any], visit: Callable[[Trainer, Any], None]) -> Trainer:
    """Train to the end; `visit` sees the trainer and the scalars after every step."""
    trainer, _ = Runs(config(model), models, out).start()
    for step in trainer.steps():
        visit(trainer, step.stats.scalars)
    return trainer


def test_kl_is_0_again_in_the_step_after_a_reset(models: Path, tmp_path: Path) -> None:
    kl: list[float] = []
    trained(models, tmp_path, KINDS["reset"], lambda _, scalars: kl.append(scalars["objective/kl"]))
    assert kl[0] == kl[2] == 0.0
    assert kl[1] != 0.0
    assert kl[3] != 0.0


def test_the_average_is_what_a_loop_over_the_weights_gives(models: Path, tmp_path: Path) -> None:
    history: list[dict[str, Tensor]] = []

    def visit(trainer: Trainer, _: Any) -> None:
        history.append({n: p.detach().double() for n, p in trainer.models.policy.language.model.named_parameters()})

    first, _ = Runs(config(KINDS["ema"]), models, tmp_path / "first").start()
    visit(first, None)
    trainer = trained(models, tmp_path, KINDS["ema"], visit)
    assert trainer.models.average is not None
    for name, value in trainer.models.average.values.items():
        expected = history[0][name]
        for weights in history[1:]:
            expected = 0.9 * expected + 0.1 * weights[name]
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-7)


def test_the_average_in_a_checkpoint_is_a_model_like_the_policy(models: Path, tmp_path: Path) -> None:
    runs = Runs(config(KINDS["ema"]), models, tmp_path)
    trainer, identity = runs.start()
    next(trainer.steps())
    folder = runs.save(trainer, identity) / "ema"
    loaded = load_language_model(ModelSource(path=str(folder)), [folder]).model
    assert trainer.models.average is not None
    values = trainer.models.average.values
    assert all(torch.equal(p, values[name]) for name, p in loaded.named_parameters())


def test_frozen_layers_have_no_optimizer_state_and_no_second_copy(models: Path, tmp_path: Path) -> None:
    """Defect 13: freezing layers saved no memory."""
    trainer = trained(models, tmp_path, KINDS["top layer"], lambda *_: None)
    language = trainer.models.policy.language.model
    layer = sum(p.numel() for p in language.model.layers[0].parameters())
    moving = layer + language.model.norm.weight.numel() + language.lm_head.weight.numel()
    head = sum(p.numel() for p in trainer.models.policy.value_head.parameters())
    states = trainer.optimizer.state_dict()["state"].values()
    assert sum(state["exp_avg"].numel() for state in states) == moving + head
    assert isinstance(trainer.models.reference, OverlaidReference)
    assert sum(t.numel() for t in trainer.models.reference.overlay.values.values()) == moving


def test_gradient_checkpointing_changes_no_weight(models: Path, tmp_path: Path) -> None:
    plain = everything(trained(models, tmp_path / "plain", KINDS["full"], lambda *_: None))
    again = everything(trained(models, tmp_path / "again", KINDS["checkpointed"], lambda *_: None))
    assert all(torch.equal(again[name], plain[name]) for name in plain)


def test_an_adapter_names_its_base_as_the_spec_does(models: Path, tmp_path: Path) -> None:
    runs = Runs(config(KINDS["gguf, lora"]), models, tmp_path)
    saved = runs.save(*runs.start())
    assert json.loads((saved / "model/adapter_config.json").read_text())["base_model_name_or_path"] == "m.gguf"
    assert not [path for path in saved.rglob("*.json") if str(tmp_path) in path.read_text()]


@pytest.mark.parametrize(
    "kind", ["full", "lora, reset", "top layers, reset to ema", "separate critic", "other reference"]
)
def test_bf16_computes_on_fp32_weights(models: Path, tmp_path: Path, kind: str) -> None:
    """Sampler and scorer differ by the rounding of bf16 (2e-4 nats were seen), policy and reference by nothing."""
    resources = {"device": "cpu", "precision": "bf16"}
    trainer, _ = Runs(config(KINDS[kind], resources=resources), models, tmp_path).start()
    before = {name: t.clone() for name, t in trained_tensors(trainer.models.policy).items()}
    scalars = [step.stats.scalars for step in trainer.steps()]
    assert scalars[0]["objective/kl"] == 0.0
    assert all(0.0 < s["sampling/logprob_mismatch"] < 0.002 for s in scalars)
    after = trained_tensors(trainer.models.policy)
    assert all(tensor.dtype is torch.float32 for tensor in after.values())
    steps = [float((after[name] - before[name]).abs().max()) for name in before]
    assert 0.0 < max(steps) < 0.01


def test_a_bf16_run_can_go_on_in_fp32(models: Path, tmp_path: Path) -> None:
    resources = {"device": "cpu", "precision": "bf16"}
    runs = Runs(config(KINDS["reset"], resources=resources), models, tmp_path)
    trainer, identity = runs.start()
    steps = trainer.steps()
    next(steps), next(steps)
    folder = runs.save(trainer, identity)
    resumed, _ = Runs(config(KINDS["reset"]), models, tmp_path).start(folder)
    assert [step.stats.step for step in resumed.steps()] == [3, 4]


@pytest.mark.parametrize("penalty", ["kl", "full"])
@pytest.mark.parametrize("kind", ["full", "lora", "top layer", "lora, gpt2"])
def test_the_own_reference_is_as_good_as_a_second_model(models: Path, tmp_path: Path, kind: str, penalty: str) -> None:
    """The same model, loaded again as a reference of its own, gives the same KL all the way."""
    policy = KINDS[kind].get("policy", {"path": "policy"})
    kl = []
    for model in (KINDS[kind], KINDS[kind] | {"reference": {"source": policy}}):
        trainer, _ = Runs(config(model, kl={"penalty": penalty}), models, tmp_path).start()
        kl.append([step.stats.scalars["objective/kl"] for step in trainer.steps()])
    assert kl[0] == pytest.approx(kl[1], rel=1e-4, abs=1e-5)
    assert kl[0][-1] != 0.0
