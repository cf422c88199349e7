"""Every alert has a runbook, and every runbook an alert."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.support.source_tree import ROOT

RULES = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
OPERATIONS = (ROOT / "docs/operations.md").read_text("utf-8")


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_says_what_to_do(rule):
    assert rule["labels"]["severity"] in {"page", "warn", "run"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
    assert re.search(rf"^### {rule['alert']}\n\n\S", OPERATIONS, re.MULTILINE)


def test_no_runbook_without_its_alert():
    assert set(re.findall(r"^### (Ppo\w+)$", OPERATIONS, re.MULTILINE)) == {rule["alert"] for rule in RULES}


def test_every_alert_has_a_case():
    """The cases themselves need promtool: `promtool test rules deploy/prometheus/alerts_test.yml`."""
    cases = yaml.safe_load((ROOT / "deploy/prometheus/alerts_test.yml").read_text("utf-8"))["tests"]
    fired = {check["alertname"] for case in cases for check in case["alert_rule_test"] if check["exp_alerts"]}
    assert fired == {rule["alert"] for rule in RULES}
