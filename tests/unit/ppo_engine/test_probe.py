"""What a probe says of a run, against the run itself: its models, its codes of failure, its tensors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from ppo_engine import runtime
from ppo_engine.build import build_trainer
from ppo_engine.config import TrainConfig
from ppo_engine.errors import EngineError
from ppo_engine.plans import Probe
from ppo_engine.program.probe.look import probe
from ppo_engine.trainer import Trainer
from tests.support.gguf_files import new_model, write_gguf
from tests.support.tiny_models import tiny_classifier, tiny_gpt2, tiny_llama

LINES = [{"prompt": "One", "answer": "1"}, {"prompt": "Two, and a longer one", "answer": "2"}, {"prompt": "One"}]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and prompts."""
    folder = tmp_path_factory.mktemp("root")
    tiny_llama(folder / "llama")
    tiny_gpt2(folder / "gpt2")
    tiny_classifier(folder / "judge")
    tiny_classifier(folder / "two", labels=2)
    write_gguf(folder / "small.gguf", new_model(folder))
    shutil.copytree(folder / "llama", folder / "torn")
    weights = folder / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    shutil.copytree(folder / "llama", folder / "mute")
    (folder / "mute" / "tokenizer.json").unlink()
    (folder / "strange").mkdir()
    (folder / "strange" / "config.json").write_text('{"model_type": "strange"}')
    (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    (folder / "bad.jsonl").write_text('{"prompt": "fine"}\n{"prompt": 3}\n')
    return folder


def config(policy: str = "llama", **sections: Any) -> TrainConfig:
    spec: dict[str, Any] = {
        "model": {"policy": {"path": policy}},
        "prompts": {"inline": ["A day", "A much longer day"]},
        "rewards": [{"name": "mood", "rule": {"name": "sentiment"}}],
        "generation": {"max_new_tokens": 6},
        "ppo": {"steps": 2, "batch_size": 4, "minibatch_size": 2, "ppo_epochs": 1},
        "resources": {"device": "cpu", "precision": "fp32"},
    }
    for name, section in sections.items():
        old = spec.get(name)
        spec[name] = old | section if isinstance(old, dict) and name != "prompts" else section
    return TrainConfig.model_validate(spec)


def built(given: TrainConfig, root: Path) -> Trainer:
    accelerator: Accelerator = runtime.start(given.resources, threads=1)
    return build_trainer(given, accelerator, roots=[root], on_phase=lambda _: None, scratch=root / "scratch")[0]


def look(given: TrainConfig, root: Path) -> Probe:
    return probe(given, roots=[root], runs=root)


def test_a_sound_run_has_no_errors_and_its_facts(root: Path):
    found = look(config(), root)
    assert found.errors == []
    assert found.model
    assert found.prompts
    assert found.prompts.tokens
    assert (found.model.architecture, found.model.layers, found.model.positions) == ("LlamaForCausalLM", 2, 256)
    # One token per byte: "A day" has 5, "A much longer day" 17.
    assert (found.prompts.tokens.minimum, found.prompts.tokens.maximum, found.prompts.tokens.mean) == (5, 17, 11.0)
    (mood,) = found.rewards
    assert mood.tried == 8
    assert (mood.minimum or 0) < 0 < (mood.maximum or 0)


def test_weights_are_never_read(root: Path, tmp_path: Path):
    shutil.copytree(root / "llama", tmp_path / "llama")
    weights = tmp_path / "llama" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start:] = b"\xff" * (len(data) - start)  # every number is NaN
    weights.write_bytes(data)
    assert look(config(), tmp_path).model == look(config(), root).model


VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora": {"rank": 3}},
    "lora on some": {"lora": {"rank": 2, "target_modules": ["q_proj"]}},
    "top": {"trainable_layers": 1},
    "critic": {"value": {"separate": {}}},
    "critic from a reward model": {"value": {"separate": {"source": {"path": "judge"}}}},
    "no reference": {"reference": {"none": {}}},
    "other reference": {"reference": {"source": {"path": "llama"}}},
    "average": {"ema_decay": 0.9},
    "gguf": {"policy": {"path": "small.gguf"}},
    "gpt2": {"policy": {"path": "gpt2"}},
    "gpt2 top": {"policy": {"path": "gpt2"}, "trainable_layers": 1},
    "gpt2 lora": {"policy": {"path": "gpt2"}, "lora": {"rank": 2}},
}


BOTH = ("full", "lora", "top", "critic", "average")
CASES = [(name, "fp32") for name in VARIANTS] + [(name, "bf16") for name in BOTH]


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_parameters_and_bytes_are_those_of_the_run(root: Path, name: str, precision: str):
    given = config(model=VARIANTS[name], kl={"init_kl_coef": 0.0}, resources={"precision": precision})
    found, trainer = look(given, root), built(given, root)
    assert found.errors == []
    assert found.model
    assert found.memory
    masters = list(trainer.models.policy.parameters())
    trained = [p for p in masters if p.requires_grad]
    assert found.model.trainable_parameters == sum(p.numel() for p in trained)
    copies = 0 if precision == "fp32" else 2 * sum(p.numel() for p in trained)
    parts = found.memory.parts
    assert parts.weights_bytes == pytest.approx(copies + sum(p.nbytes for p in masters), rel=0.01)
    assert parts.optimizer_bytes == 8 * sum(p.numel() for p in trained)
    assert parts.reference_bytes == pytest.approx(_reference_bytes(trainer), rel=0.02)
    average = trainer.models.average
    assert parts.average_bytes == pytest.approx(0 if average is None else _bytes(average.values.values()), rel=0.02)


def _reference_bytes(trainer: Trainer) -> int:
    reference = trainer.models.reference
    if reference is None:
        return 0
    if isinstance(reference, torch.nn.Module):
        return _bytes(reference.parameters())
    return _bytes(reference.overlay.values.values())  # type: ignore[attr-defined]


def _bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "no such model": ({"policy": "nowhere"}, "/model/policy"),
    "unknown architecture": ({"policy": "strange"}, "/model/policy"),
    "torn weights": ({"policy": "torn"}, "/model/policy"),
    "no tokenizer": ({"policy": "mute"}, "/model/policy"),
    "no such module": ({"model": {"lora": {"target_modules": ["nothing"]}}}, "/model/lora"),
    "too many layers": ({"model": {"trainable_layers": 3}}, "/model/trainable_layers"),
    "other vocabulary": ({"model": {"reference": {"source": {"path": "small.gguf"}}}}, "/model/reference"),
    "no chat template": ({"prompts": {"inline": ["x"], "chat": {}}}, "/prompts"),
    "bad line": ({"prompts": {"file": {"path": "bad.jsonl"}}}, "/prompts"),
    "all too long": ({"prompts": {"inline": ["xxx"], "max_tokens": 2}}, "/prompts"),
    "context": ({"generation": {"max_new_tokens": 250}}, "/generation/max_new_tokens"),
    "labels": ({"rewards": [{"name": "j", "model": {"source": {"path": "two"}}}]}, "/rewards/0"),
    "plugin": ({"rewards": [{"name": "p", "plugin": {"name": "nothing"}}]}, "/rewards/0"),
    "forbidden host": ({"rewards": [{"name": "h", "http": {"url": "http://127.0.0.1:9/"}}]}, "/rewards/0"),
    "texts": ({"ptx": {"texts": {"file": {"path": "bad.jsonl"}}}}, "/ptx/texts"),
    "evaluation": ({"evaluation": {"prompts": {"file": {"path": "none.jsonl"}}}}, "/evaluation/prompts"),
}


@pytest.mark.parametrize(("sections", "pointer"), FAILURES.values(), ids=FAILURES.keys())
def test_an_error_has_the_code_that_the_run_would_fail_with(root: Path, sections: dict[str, Any], pointer: str):
    given = config(**sections)
    with pytest.raises(EngineError) as caught:
        built(given, root)
    found = {error.pointer: error for error in look(given, root).errors}
    assert pointer in found, found
    assert found[pointer].code == caught.value.code


def test_one_broken_part_hides_no_other(root: Path):
    given = config(
        policy="torn",
        prompts={"file": {"path": "bad.jsonl"}},
        rewards=[{"name": "p", "plugin": {"name": "nothing"}}, {"name": "mood", "rule": {"name": "sentiment"}}],
    )
    found = look(given, root)
    assert {error.pointer for error in found.errors} == {"/model/policy", "/prompts", "/rewards/0"}
    assert [trial.tried for trial in found.rewards] == [0, 0]


def test_a_set_of_prompts_is_counted(root: Path):
    found = look(config(prompts={"file": {"path": "lines.jsonl"}, "max_tokens": 10}), root).prompts
    assert found is not None
    assert (found.count, found.usable, found.too_long, found.empty, found.duplicates) == (3, 2, 1, 0, 1)


def test_a_reward_that_compares_meets_the_prompts_own_answers(root: Path):
    rewards = [{"name": "right", "rule": {"name": "exact"}, "on_error": "zero", "max_error_rate": 1.0}]
    found = look(config(prompts={"file": {"path": "lines.jsonl"}}, rewards=rewards), root)
    assert (found.rewards[0].minimum, found.rewards[0].maximum) == (0.0, 1.0)


def test_a_reward_that_never_varies_is_pointed_out(root: Path):
    rewards = [{"name": "odd", "rule": {"name": "regex", "params": {"pattern": "zebra"}}}]
    codes = {warning.pointer: warning.code for warning in look(config(rewards=rewards), root).warnings}
    assert codes["/rewards/0"] == "reward_never_varies"


def test_the_key_value_cache_is_what_sampling_holds(root: Path, monkeypatch: pytest.MonkeyPatch):
    from ppo_engine.experience import generation

    made = []

    def kept(*args: Any) -> Any:
        made.append(make(*args))
        return made[-1]

    make = generation.make_cache
    monkeypatch.setattr(generation, "make_cache", kept)
    monkeypatch.setattr("ppo_engine.experience.cache.RoomyLayer.reorder_cache", lambda *_: None)
    given = config(generation={"min_new_tokens": 6})
    found, trainer = look(given, root), built(given, root)
    next(trainer.steps())
    rooms = [room for layer in made[0].layers for room in layer._rooms]
    assert found.memory is not None
    assert found.memory.parts.kv_cache_bytes == _bytes(rooms)
