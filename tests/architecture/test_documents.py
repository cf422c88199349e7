"""Documents that can be checked against code are."""

from __future__ import annotations

import json
import re

import pytest
from typer.main import get_command

from docs import generate
from jobs.spec import JobSpec, parse_spec
from ppo_client import cli
from ppo_engine.stats import METRICS
from tests.support.source_tree import ROOT, repository_files

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE_PATH = re.compile(
    r"`((?:api|worker|jobs|ppo_engine|ppo_client|proto|migrations|deploy|docs|tests|examples)/[\w./-]+)`"
)
SPEC_PATH = re.compile(
    r"`((?:model|prompts|generation|ppo|kl|optimizer|checkpoint|logging|resources|retry)\.[a-z_.]+)\b"
)
METRIC_KEY = re.compile(r"`((?:env|objective|ppo|tokens|time|memory|sampling)/[a-z_/]+)`")
PAGES = [path for path in repository_files() if path.endswith(".md")]


def slug(heading: str) -> str:
    """The anchor of a heading as forges make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {slug(line.lstrip("#")) for line in text.splitlines() if line.startswith("#")}


def broken_links(path: str, text: str) -> list[str]:
    """Relative links of a page that lead nowhere."""
    broken = []
    for target in LINK.findall(text):
        file, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        page = (ROOT / path).parent / file if file else ROOT / path
        if not page.exists() or (anchor and anchor not in anchors(page.read_text("utf-8"))):
            broken.append(target)
    return broken


@pytest.mark.parametrize("name", sorted(generate.documents()))
def test_generated_documents_are_fresh(name):
    """`python docs/generate.py` would change nothing."""
    assert (ROOT / "docs" / name).read_text("utf-8") == generate.documents()[name]


def test_every_setting_says_what_it_means():
    rows = [row for reader, cls in generate.SETTINGS.items() for row in generate.settings_rows(reader, cls)]
    assert [row for row in rows if row.endswith("|  |")] == []


@pytest.mark.parametrize("path", PAGES)
def test_links_lead_somewhere(path):
    assert broken_links(path, (ROOT / path).read_text("utf-8")) == []


@pytest.mark.parametrize("path", PAGES)
def test_named_files_exist(path):
    named = CODE_PATH.findall((ROOT / path).read_text("utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def is_field(path: str, model: object = JobSpec) -> bool:
    """Whether a dotted path leads through the spec's models to a field."""
    name, _, rest = path.partition(".")
    fields = getattr(model, "model_fields", {})
    if name not in fields:
        return False
    kinds = [fields[name].annotation, *getattr(fields[name].annotation, "__args__", ())]
    return not rest or any(is_field(rest, kind) for kind in kinds)


@pytest.mark.parametrize("path", PAGES)
def test_named_spec_fields_exist(path):
    assert [name for name in SPEC_PATH.findall((ROOT / path).read_text("utf-8")) if not is_field(name)] == []


@pytest.mark.parametrize("path", PAGES)
def test_named_metrics_exist(path):
    keys = {metric.key for metric in METRICS}
    assert [key for key in METRIC_KEY.findall((ROOT / path).read_text("utf-8")) if key not in keys] == []


def test_the_readmes_spec_is_one():
    (spec,) = re.findall(r"```json\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert parse_spec(json.loads(spec)).name == "more-positive"


def test_the_readme_names_every_command_and_no_other():
    text = (ROOT / "README.md").read_text("utf-8")
    table = text.partition("## The `ppo` command")[2].partition("\n## ")[0]
    named = {word.split()[0] for word in re.findall(r"`([a-z][a-z-]*(?: [^`]*)?)`", table)} - {"ppo"}
    assert named == set(get_command(cli.app).commands)


def test_a_field_that_is_not_there_is_noticed():
    assert is_field("kl.adaptive.target")
    assert is_field("resources.queue")
    assert not is_field("kl.adaptive.goal")
    assert not is_field("ppo.learning_rate")


def test_a_broken_link_is_noticed():
    assert broken_links("README.md", "[x](docs/none.md) [y](docs/metrics.md#nowhere) [z](docs/metrics.md#scalars)") == [
        "docs/none.md",
        "docs/metrics.md#nowhere",
    ]


def test_pages_keep_their_size():
    """A newcomer's pages stay readable in one sitting."""
    assert (ROOT / "CONTRIBUTING.md").read_text("utf-8").count("\n") <= 100
    for path in (ROOT / "docs" / "decisions").glob("0*.md"):
        assert path.read_text("utf-8").count("\n") <= 60, path.name
