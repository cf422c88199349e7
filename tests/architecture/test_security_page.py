"""docs/security.md names tests that exist, at least one for each threat."""

from __future__ import annotations

import ast
import re

from tests.support.source_tree import ROOT

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]


def missing(text: str) -> list[str]:
    """Tests that a text names and that are not there."""
    return [f"{path}::{name}" for path, name in NAMED.findall(text) if name not in _tests(path)]


def _tests(path: str) -> set[str]:
    file = ROOT / path
    body = ast.parse(file.read_text("utf-8")).body if file.is_file() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_threat_has_a_test():
    assert len(ROWS) > 20
    assert [row for row in ROWS if not NAMED.search(row.rsplit("|", 2)[1])] == []


def test_every_test_that_is_named_exists():
    assert missing(PAGE) == []


def test_one_that_does_not_is_noticed():
    assert missing("`tests/architecture/test_security_page.py::test_nothing`") != []
    assert missing("`tests/architecture/test_nowhere.py::test_every_threat_has_a_test`") != []
