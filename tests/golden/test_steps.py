"""Two consecutive training steps of each recorded TRL case give TRL's statistics, coefficients and weights."""

from __future__ import annotations

import pytest

from tests.golden.replay import cases, make_trainer, replay_step
from tests.support.tolerances import golden

DEFECTS = {"whiten_rewards", "ratio_skip"}
"""Cases whose numbers show a defect of the reference; our semantics are tested in test_defects.py."""

SOUND = [case for case in cases() if case["variant"] not in DEFECTS]


@pytest.mark.parametrize("case", SOUND, ids=lambda case: f"{case['base']}-{case['variant']}")
def test_recorded_steps_are_reproduced(case: dict) -> None:
    trainer = make_trainer(case)
    for step in case["steps"]:
        ours = replay_step(trainer, step)
        theirs = {key: value for key, value in step["stats"].items() if not isinstance(value, list)}
        assert set(theirs) <= set(ours) | {"env/reward_mean", "env/reward_std"}
        assert {key: ours[key] for key in theirs} == golden(theirs)
        assert trainer.kl.value == golden(step["kl_coef_after"])
        head = trainer.models.policy.value_head
        after = step["weights_after"]
        assert head.weight.flatten().tolist() == golden(after["v_head_weight"])
        bias = after["v_head_bias"]
        assert head.bias.tolist() == golden(bias if isinstance(bias, list) else [bias])
