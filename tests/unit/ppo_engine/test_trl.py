"""Coming from TRL: all its options have an answer, and those that can be copied land where they belong."""

from __future__ import annotations

import pytest

from ppo_engine.config import AdaptiveKL, FixedKL, ScoreScaling, TrainConfig
from ppo_engine.stats import METRICS
from ppo_engine.trl import ARGUMENTS, FIELDS, METRIC_NOTES, TrlField, spec_fields

BASE = {
    "model": {"policy": {"path": "m"}},
    "prompts": {"inline": ["a"]},
    "rewards": [{"name": "s", "rule": {"name": "sentiment"}}],
}
SERVICE = {"name", "labels"}
"""Of the job, not of the training."""


def config(**options: object) -> TrainConfig:
    spec = spec_fields(options)
    return TrainConfig.model_validate(BASE | spec | {"ppo": {"steps": 1} | spec.get("ppo", {})})


def test_all_49_options_have_an_answer() -> None:
    assert len(FIELDS) == len({field.name for field in FIELDS}) == 49
    assert all(field.ours or field.note for field in FIELDS)


@pytest.mark.parametrize("field", [*FIELDS, *ARGUMENTS], ids=lambda field: field.name)
def test_what_an_option_became_exists(field: TrlField) -> None:
    for path in field.ours.split(", ") if field.ours else []:
        model, *rest = [TrainConfig, *path.split(".")]
        if rest[0] in SERVICE:
            continue
        for name in rest:
            annotation = model.model_fields[name].annotation
            model = next((a for a in getattr(annotation, "__args__", ()) if hasattr(a, "model_fields")), annotation)


def test_options_land_where_they_belong() -> None:
    ours = config(lam=0.8, cliprange=0.1, cliprange_value=0.05, mini_batch_size=2, kl_penalty="abs", target=0.1)
    assert (ours.ppo.gae_lambda, ours.ppo.clip_range, ours.ppo.value_clip_range) == (0.8, 0.1, 0.05)
    assert (ours.ppo.minibatch_size, ours.kl.penalty) == (2, "abs")
    assert ours.kl.controller == AdaptiveKL(target=0.1)


def test_options_that_only_mean_something_together() -> None:
    assert config(adap_kl_ctrl=False, target=3.0).kl.controller == FixedKL()
    assert config(target_kl=0.5).ppo.target_kl is None
    assert config(early_stopping=True).ppo.target_kl == 1.0
    assert config(early_stopping=True, target_kl=0.5).ppo.target_kl == 0.5
    assert config(use_score_norm=True).ppo.score_scaling is ScoreScaling.NONE
    assert config(use_score_scaling=True, use_score_norm=True).ppo.score_scaling is ScoreScaling.NORMALISE


def test_defaults_are_those_of_trl() -> None:
    ours = config()
    assert (ours.optimizer.learning_rate, ours.kl.init_kl_coef, ours.ppo.vf_coef) == (1.41e-5, 0.2, 0.1)
    assert (ours.ppo.batch_size, ours.minibatch_size, ours.ppo.ppo_epochs) == (128, 128, 4)
    assert (ours.ppo.gamma, ours.ppo.gae_lambda, ours.ppo.ratio_threshold) == (1.0, 0.95, 10.0)
    assert ours.kl.controller == AdaptiveKL(target=6.0, horizon=10_000.0)


@pytest.mark.parametrize(("option", "words"), [("klpenalty", "not options"), ("steps", "Counted samples")])
def test_other_options_are_refused(option: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        spec_fields({option: 1})


def test_notes_are_about_keys_that_trl_had() -> None:
    assert METRIC_NOTES.keys() <= {metric.key for metric in METRICS if not metric.ours}
