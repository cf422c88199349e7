"""The KL over the whole vocabulary as a loss: its value, its gradient, and where it pulls."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from ppo_engine.batch import make_sequences
from ppo_engine.maths import logprobs
from ppo_engine.maths.logprobs import Distribution, full_kl
from tests.support.specs import spec_document
from tests.support.tolerances import GOLDEN, assert_close
from tests.support.trainers import make_trainer

SEQUENCES = make_sequences([[5, 6], [7, 8, 9], [1, 2]], [[10, 11, 12], [13, 14], [3]], pad_id=0)


@pytest.mark.parametrize("chunk", [1, 10**9])
def test_value_and_gradient_are_those_of_kl_div(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", chunk)
    torch.manual_seed(0)
    head, ref_head = torch.nn.Linear(4, 11), torch.nn.Linear(4, 11)
    hidden, ref_hidden = torch.randn(7, 4), torch.randn(7, 4)
    ours, plain = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    found = full_kl(ours, ref_hidden, torch.arange(7), head, ref_head, Distribution(temperature=0.7))
    log_p, log_q = (head(plain) / 0.7).log_softmax(-1), (ref_head(ref_hidden) / 0.7).log_softmax(-1)
    expected = F.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
    assert_close(found, expected.detach(), GOLDEN)
    weights = torch.randn(7)
    (weights * found).sum().backward()
    assert ref_head.weight.grad is None
    (weights * expected).sum().backward()
    assert ours.grad is not None
    assert plain.grad is not None
    assert_close(ours.grad, plain.grad, GOLDEN)


def test_as_a_loss_it_pulls_the_policy_to_the_reference_over_the_whole_vocabulary() -> None:
    kl = {"penalty": "full", "placement": "loss", "init_kl_coef": 1.0, "fixed": {}}
    trainer = make_trainer(kl=kl, optimizer={"learning_rate": 1e-3}, ppo={"batch_size": 3, "ppo_epochs": 1})
    measured, losses = [], []
    for _ in range(6):
        update = trainer.update(SEQUENCES, [0.0, 0.0, 0.0])
        measured.append(trainer.scalars(update)["objective/kl"])
        losses.append(trainer.scalars(update)["ppo/loss/kl"])
    tokens = int(SEQUENCES.response_mask.sum())
    assert losses[0] == pytest.approx(measured[0] * len(SEQUENCES) / tokens, rel=1e-5)
    assert all(later < earlier for earlier, later in pairwise(measured))
    assert measured[-1] < 0.7 * measured[0]


def test_splitting_changes_no_number() -> None:
    kl = {"penalty": "full", "placement": "loss", "init_kl_coef": 0.5, "fixed": {}}
    found = []
    for size in (3, 1):
        trainer = make_trainer(kl=kl, ppo={"batch_size": 3, "microbatch_size": size, "ppo_epochs": 2})
        found.append(trainer.scalars(trainer.update(SEQUENCES, [1.0, -1.0, 0.5])))
    for key, value in found[0].items():
        if not key.startswith(("time/", "memory/")):
            assert value == pytest.approx(found[1][key], rel=1e-4, abs=1e-5), key


def test_only_the_plain_difference_is_refused_as_a_loss() -> None:
    from jobs.errors import InvalidSpec
    from jobs.spec import parse_spec

    for penalty in ("abs", "mse", "k3", "full"):
        parse_spec(spec_document(kl={"penalty": penalty, "placement": "loss"}))
    with pytest.raises(InvalidSpec, match="mean 0 and pulls nowhere"):
        parse_spec(spec_document(kl={"penalty": "kl", "placement": "loss"}))
