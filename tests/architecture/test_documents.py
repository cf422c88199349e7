"""Documents that can be checked against code are."""

from __future__ import annotations

import re

import pytest

from docs import generate
from tests.support.source_tree import ROOT, repository_files

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE_PATH = re.compile(
    r"`((?:api|worker|jobs|ppo_engine|ppo_client|proto|migrations|deploy|docs|tests|examples)/[\w./-]+)`"
)
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
