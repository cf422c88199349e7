"""The rules of health: each on a known metric, and in step with the alerts that say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from jobs.health import RULES, Level, Rule, verdict
from ppo_engine.stats import SCALARS

ALERTS = Path(__file__).resolve().parents[3] / "deploy" / "prometheus" / "alerts.yml"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_bounds_a_metric_that_exists_and_says_what_to_do(rule: Rule):
    assert rule.metric in SCALARS
    assert (rule.above is None) != (rule.below is None)
    assert rule.level is not Level.OK
    assert rule.advice.endswith(".")
    assert rule.source


def test_names_are_unique():
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_a_rule_that_names_an_alert_has_its_number():
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    alerts = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
    named = {rule: match[1] for rule in RULES if (match := re.search(r"alerts\.yml (\w+)", rule.source))}
    assert len(named) >= 7
    for rule, alert in named.items():
        bound = rule.above if rule.above is not None else rule.below
        assert SCALARS[rule.metric].prometheus_name in alerts[alert]
        assert re.search(rf"(?<![\d.]){re.escape(f'{bound:g}')}(?![\d.])", alerts[alert]), (rule.name, alerts[alert])


def test_the_word_for_a_job_is_that_of_its_worst_number():
    assert verdict({}, 0) is None
    assert verdict({"objective/kl": 30.0}, 0) is None
    assert verdict({"objective/kl": 25.0}, 1) == "ok"
    assert verdict({"objective/kl": -2.0}, 1) == "warning"
    assert verdict({"objective/kl": -2.0, "ppo/policy/entropy": 0.05}, 1) == "critical"


def test_a_new_critic_is_given_time():
    poor = {"ppo/val/explained_variance": -0.5}
    assert (verdict(poor, 9), verdict(poor, 10)) == ("ok", "warning")
