"""The functions of TRL 0.11.4 on fixed inputs. Row 2 of the mask has a hole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ppo_engine.config import KLPenalty, ScoreScaling
from ppo_engine.maths.advantages import gae
from ppo_engine.maths.kl import AdaptiveController, per_token_kl
from ppo_engine.maths.logprobs import Distribution, full_kl, token_logprobs
from ppo_engine.maths.losses import policy_loss, value_loss
from ppo_engine.maths.masked import keep, masked_mean, masked_var, whiten
from ppo_engine.maths.shaping import RunningMoments, per_token_rewards, process_scores
from tests.support.tolerances import GOLDEN, assert_close, golden

RECORDED = json.loads((Path(__file__).parent / "data" / "functions.json").read_text())
INPUTS: dict[str, Any] = RECORDED["inputs"]
MASK = torch.tensor(INPUTS["mask"]).bool()
POSITIONS = torch.arange(6).expand(3, 6).reshape(-1)
WITHOUT_HOLE = [0, 1]


def tensor(name: str) -> Tensor:
    return torch.tensor(RECORDED.get(name) or INPUTS[name])


def identity_head(logits: Tensor) -> Tensor:
    """The recorded logits stand in for hidden states."""
    return logits


def ours(logits_name: str) -> tuple[Tensor, Tensor]:
    logits, labels = tensor(logits_name).reshape(18, 11), tensor("labels").reshape(18)
    logprobs, entropy = token_logprobs(logits, labels, POSITIONS, identity_head, Distribution(), entropy_grad=False)
    return logprobs.reshape(3, 6), entropy.reshape(3, 6)


@pytest.mark.parametrize(
    ("logits", "recorded"),
    [("logits", "logprobs"), ("ref_logits", "ref_logprobs"), ("new_logits", "new_logprobs")],
)
def test_logprobs(logits: str, recorded: str) -> None:
    assert_close(ours(logits)[0], RECORDED[recorded], GOLDEN)


def test_entropy_of_the_whole_vocabulary() -> None:
    assert_close(ours("new_logits")[1], RECORDED["entropy_per_token_new"], GOLDEN)


def kl_of(penalty: KLPenalty) -> Tensor:
    if penalty is KLPenalty.FULL:
        flat, ref = tensor("logits").reshape(18, 11), tensor("ref_logits").reshape(18, 11)
        return full_kl(flat, ref, POSITIONS, identity_head, identity_head, Distribution()).reshape(3, 6)
    return per_token_kl(tensor("logprobs"), tensor("ref_logprobs"), penalty)


@pytest.mark.parametrize("penalty", [penalty for penalty in KLPenalty if penalty is not KLPenalty.K3])
def test_rewards(penalty: KLPenalty) -> None:
    recorded, kl = RECORDED["compute_rewards"][penalty], kl_of(penalty)
    assert_close(keep(kl, MASK), keep(torch.tensor(recorded["kls"]), MASK), GOLDEN)
    rewards = per_token_rewards(tensor("scores"), kl, MASK, INPUTS["init_kl_coef"])
    assert_close(rewards, keep(torch.tensor(recorded["rewards"]), MASK), GOLDEN)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8)])
def test_advantages_of_sequences_without_a_hole(gamma: float, lam: float) -> None:
    recorded = RECORDED["compute_advantages"][f"whiten_rewards=False,gamma={gamma},lam={lam}"]
    rewards = torch.tensor(RECORDED["compute_rewards"]["kl"]["rewards"])
    _, returns = gae(rewards, tensor("values"), MASK, gamma=gamma, lam=lam)
    wanted = keep(torch.tensor(recorded["returns"]), MASK)
    assert_close(returns[WITHOUT_HOLE], wanted[WITHOUT_HOLE], GOLDEN)


@pytest.mark.parametrize("variant", ["default", "tight"])
def test_losses(variant: str) -> None:
    recorded = RECORDED["loss"][variant]
    stats, options = recorded["stats"], recorded["cfg"]
    targets = RECORDED["compute_advantages"]["whiten_rewards=False,gamma=1.0,lam=0.95"]
    policy = policy_loss(
        tensor("new_logprobs"),
        tensor("logprobs"),
        torch.tensor(targets["advantages"]),
        clip_range=options.get("cliprange", 0.2),
    )
    value = value_loss(
        tensor("vpreds"),
        torch.tensor(targets["values"]),
        torch.tensor(targets["returns"]),
        clip_range=options.get("cliprange_value", 0.2),
    )
    measured = {
        "loss/policy": policy.loss,
        "loss/value": value.loss,
        "policy/clipfrac": policy.clipped.float(),
        "val/error": value.error,
        "val/clipfrac": value.clipped.float(),
        "val/vpred": tensor("vpreds"),
    }
    assert {key: float(masked_mean(x, MASK)) for key, x in measured.items()} == golden({k: stats[k] for k in measured})
    assert_close(policy.ratio, stats["policy/ratio"], GOLDEN)


def test_masked_statistics() -> None:
    recorded = RECORDED["masked"]
    x = torch.tensor(recorded["x"])
    assert float(masked_mean(x, MASK)) == golden(recorded["mean"])
    assert float(masked_var(x, MASK)) == golden(recorded["var"])
    assert_close(whiten(x, MASK), keep(torch.tensor(recorded["whiten"]), MASK), GOLDEN)
    kept = keep(torch.tensor(recorded["whiten_keep_mean"]), MASK)
    assert_close(whiten(x, MASK, shift_mean=False), kept, GOLDEN)


def test_adaptive_controller() -> None:
    recorded = RECORDED["adaptive_kl"]
    controller = AdaptiveController(recorded["init"], recorded["target"], recorded["horizon"])
    for kl, sequences, value_after in recorded["sequence_kl_nsteps_valueafter"]:
        controller.update(kl, sequences)
        assert controller.value == golden(value_after)


def test_running_moments() -> None:
    moments = RunningMoments()
    for recorded in RECORDED["running_moments"]:
        moments.update(torch.tensor(recorded["xs"]))
        wanted = {"mean": recorded["mean"], "std": recorded["std"], "var": recorded["var"], "count": recorded["count"]}
        assert {name: getattr(moments, name) for name in wanted} == golden(wanted)


def test_scores_are_scaled_by_all_scores_so_far_then_clipped() -> None:
    first, second = (torch.tensor(entry["xs"]) for entry in RECORDED["running_moments"][:2])
    moments = RunningMoments()
    process_scores(first, moments, ScoreScaling.SCALE, None)
    scaled = process_scores(second, moments, ScoreScaling.SCALE, 1.0)
    std = RECORDED["running_moments"][1]["std"]
    assert_close(scaled, [0.0, -1.0 / std, 1.0, 1.0], GOLDEN)
    normalised = process_scores(torch.zeros(2), RunningMoments(1.0, 4.0, 8.0), ScoreScaling.NORMALISE, None)
    merged = [1.0] * 8 + [0.0] * 2  # mean 0.8; squares 8*4 + 8*0.04 + 2*0.64
    mean = sum(merged) / 10
    std = ((8 * 4.0 + 8 * (1.0 - mean) ** 2 + 2 * mean**2) / 9) ** 0.5
    assert_close(normalised, [-mean / std] * 2, GOLDEN)
