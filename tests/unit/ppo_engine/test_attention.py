"""The kernel is chosen by length and precision, and the choice changes no number beyond rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ppo_engine.batch import make_sequences
from ppo_engine.config import ModelSource
from ppo_engine.models import attention
from ppo_engine.models.compute import ComputeWeights
from ppo_engine.models.loading import load_language_model
from tests.support.tiny_models import tiny_llama

SEQUENCES = make_sequences([[5, 6], [7, 8, 9]], [[10, 11, 12], [13, 14]], pad_id=0)


@pytest.mark.parametrize(
    ("dtype", "longest", "wanted"),
    [(torch.bfloat16, 256, "eager"), (torch.bfloat16, 3, "sdpa"), (torch.float32, 256, "sdpa")],
)
def test_short_sequences_in_half_precision_take_plain_products(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: torch.dtype, longest: int, wanted: str
) -> None:
    monkeypatch.setattr(attention, "SHORT_TOKENS", longest)
    tiny_llama(tmp_path / "policy")
    language = load_language_model(ModelSource(path="policy"), [tmp_path])
    used: list[str] = []
    layer = language.model.base_model.layers[0].self_attn
    layer.register_forward_pre_hook(lambda module, _: used.append(module.config._attn_implementation))
    with ComputeWeights([language], dtype).applied():
        language.trunk.response_hidden(SEQUENCES)
    assert used == [wanted]
    assert language.model.config._attn_implementation == "sdpa"


def test_both_kernels_give_the_same_hidden_states(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "policy")
    language = load_language_model(ModelSource(path="policy"), [tmp_path])
    found = []
    with torch.no_grad(), ComputeWeights([language], torch.bfloat16).applied():
        for longest in (256, 0):
            monkeypatch.setattr(attention, "SHORT_TOKENS", longest)
            found.append(language.trunk.response_hidden(SEQUENCES)[SEQUENCES.response_mask].float())
    torch.testing.assert_close(found[0], found[1], rtol=0.05, atol=0.05)
