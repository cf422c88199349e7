"""A GGUF file as a model of a run: converted once, and trained as the folder it became."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from ppo_engine.config import ModelConfig
from ppo_engine.errors import ModelUnavailable
from ppo_engine.models import conversion
from ppo_engine.models.conversion import without_gguf
from ppo_engine.models.networks import load_policy
from tests.support.gguf_files import new_model, write_gguf


def config(**changes: Any) -> ModelConfig:
    return ModelConfig.model_validate({"policy": {"path": "m.gguf"}} | changes)


@pytest.fixture
def model(tmp_path: Path) -> LlamaForCausalLM:
    model = new_model(tmp_path)
    write_gguf(tmp_path / "m.gguf", model)
    return model


def test_a_gguf_file_is_a_policy_critic_and_reference(tmp_path: Path, model: LlamaForCausalLM) -> None:
    source = {"path": "m.gguf"}
    wanted = config(reference={"source": source}, value={"separate": {"source": source}})
    found = without_gguf(wanted, [tmp_path], tmp_path / "scratch")
    language = load_policy(found, [tmp_path / "scratch"]).model
    assert all(torch.equal(p, model.state_dict()[name]) for name, p in language.named_parameters())
    assert found.reference is not None
    assert found.value.separate is not None
    assert found.policy == found.reference.source == found.value.separate.source
    assert len(list((tmp_path / "scratch").iterdir())) == 1


def test_a_later_attempt_does_not_convert_again(
    tmp_path: Path, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = without_gguf(config(), [tmp_path], tmp_path / "scratch")
    monkeypatch.setattr(conversion, "convert", None)
    assert without_gguf(config(), [tmp_path], tmp_path / "scratch") == first


def test_a_changed_file_is_converted_anew(tmp_path: Path, model: LlamaForCausalLM) -> None:
    first = without_gguf(config(), [tmp_path], tmp_path / "scratch")
    with torch.no_grad():
        model.model.norm.weight.fill_(2.0)
    write_gguf(tmp_path / "m.gguf", model)
    again = without_gguf(config(), [tmp_path], tmp_path / "scratch")
    assert again != first
    norm = load_policy(again, [tmp_path / "scratch"]).model.model.norm.weight
    assert bool((norm == 2.0).all())


def test_folders_and_hub_names_stay_what_they_are(tmp_path: Path) -> None:
    for policy in ({"path": "folder"}, {"hub": "someone/model.gguf"}):
        assert without_gguf(config(policy=policy), [tmp_path], None) == config(policy=policy)


def test_a_gguf_file_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"nonsense")
    with pytest.raises(ModelUnavailable, match="cannot be read as a llama GGUF file"):
        without_gguf(config(), [tmp_path], tmp_path / "scratch")
    with pytest.raises(ModelUnavailable, match="not under the model and data roots"):
        without_gguf(config(policy={"path": "other.gguf"}), [tmp_path], tmp_path / "scratch")
    with pytest.raises(ModelUnavailable, match="no place"):
        without_gguf(config(), [tmp_path], None)
