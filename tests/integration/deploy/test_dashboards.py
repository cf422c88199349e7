"""Every query of every dashboard and alert names metrics and labels that the service really exports."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from deploy.grafana import build
from ppo_engine.stats import SCALARS
from tests.support import exported_metrics
from tests.support.promql import names
from tests.support.source_tree import ROOT

FOLDER = ROOT / "deploy/grafana/dashboards"
PROMETHEUS_OWN = {"up": {"job", "instance", "worker"}}
CHOICE = re.compile(r"label_values\((.+), (\w+)\)")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return exported_metrics.everything(tmp_path_factory.mktemp("home"))


def dashboards():
    return {path.name: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def panels(page):
    return [panel for panel in page["panels"] if panel["type"] != "row"]


def queries():
    for name, page in dashboards().items():
        for panel in panels(page):
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"]
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            yield f"alerts.yml: {rule['alert']}", rule["expr"]


def known_labels(exported, metric):
    """Labels of a metric over all scrape jobs that export it; None for an unknown metric."""
    if metric in PROMETHEUS_OWN:
        return PROMETHEUS_OWN[metric]
    found = [page[metric] | {"job", "instance"} for page in exported.values() if metric in page]
    if metric in exported["ppo-workers"]:
        found.append({"worker"})
    return set().union(*found) if found else None


def faults(exported, expression):
    named = names(expression)
    unknown = [metric for metric in sorted(named.metrics) if known_labels(exported, metric) is None]
    if unknown:
        return unknown
    labels = set().union(*(known_labels(exported, metric) for metric in named.metrics))
    matched = [f"{metric}{{{label}}}" for metric, label in named.matched if label not in known_labels(exported, metric)]
    return matched + [f"by ({label})" for label in named.grouped if label not in labels]


QUERIES = list(queries())


@pytest.mark.parametrize("expression", [query for _, query in QUERIES], ids=[where for where, _ in QUERIES])
def test_a_query_names_what_is_exported(exported, expression):
    assert names(expression).metrics, "a query without a metric"
    assert faults(exported, expression) == []


@pytest.mark.parametrize(
    "wrong",
    [
        'ppo_no_such_metric{job="ppo-api"}',
        'rate(ppo_http_requests{job="ppo-api"}[5m])',
        'ppo_jobs{stat="queued"}',
        "sum by (color) (ppo_jobs)",
        "ppo_objective_kl > ppo_objective_k",
        "ppo_http_request_duration_seconds",
    ],
)
def test_a_wrong_query_is_noticed(exported, wrong):
    assert faults(exported, wrong)


def test_choices_name_what_is_exported(exported):
    choices = [variable["query"]["query"] for page in dashboards().values() for variable in page["templating"]["list"]]
    assert choices
    for choice in choices:
        selector, label = CHOICE.fullmatch(choice).groups()
        assert faults(exported, selector) == []
        (metric,) = names(selector).metrics
        assert label in known_labels(exported, metric)


def test_selectors_use_the_names_of_scrape_jobs():
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8"))
    scraped = {job["job_name"] for job in config["scrape_configs"]}
    used = {name for _, query in QUERIES for name in re.findall(r'\bjob="([^"]+)"', query)}
    assert used <= scraped


def test_every_statistic_of_a_step_is_on_the_dashboard_of_a_run():
    shown = set().union(*(names(query).metrics for where, query in QUERIES if where.startswith("ppo-run.json")))
    assert {metric.prometheus_name for metric in SCALARS.values()} - shown == set()


@pytest.mark.parametrize("name", sorted(dashboards()))
def test_panels_say_how_to_read_them(name):
    page = dashboards()[name]
    for panel in panels(page):
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
    assert len({panel["title"] for panel in panels(page)}) == len(panels(page))
    assert len({panel["id"] for panel in page["panels"]}) == len(page["panels"])


@pytest.mark.parametrize("name", sorted(dashboards()))
def test_panels_do_not_overlap(name):
    taken = set()
    for panel in dashboards()[name]["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("name", sorted(build.DASHBOARDS))
def test_dashboards_are_fresh(name):
    """`python -m deploy.grafana.build` would change nothing."""
    assert (FOLDER / name).read_text("utf-8") == build.documents()[name]
