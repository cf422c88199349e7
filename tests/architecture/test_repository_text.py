"""Tracked text holds nothing of one machine: no absolute paths, no registry hosts, no secrets."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.source_tree import ROOT, repository_files

# Written in pieces, so that this file does not match itself.
MACHINE = re.compile(
    "|".join(
        [
            r"(?<![\w.~-])/wor" + r"k/",
            r"(?<![\w.~-])/hom" + r"e/\w",
            r"/Use" + r"rs/\w",
            r"/op" + r"t/(pypi|wheels)",
            r"pyth" + r"onhosted\.org",
            r"(?<![\w-])py" + r"pi\.org",
            r"downl" + r"oad\.pytorch\.org",
            r"regis" + r"try\.npmjs",
            r"prox" + r"y\.golang",
            r"deb\.debi" + r"an\.org",
        ]
    )
)
SECRET = re.compile(
    "|".join([r"-----BEGIN (?:\w+ )?PRIV" + r"ATE KEY", r"\bpp" + r"o_[A-Za-z0-9]{24,}", r"\bAK" + r"IA[A-Z0-9]{16}"])
)
BINARY = (".safetensors", ".png", ".gguf", ".npz", ".parquet")


def text_files() -> list[str]:
    return [path for path in repository_files() if not path.endswith(BINARY)]


def findings(pattern: re.Pattern[str], path: str) -> list[str]:
    lines = (ROOT / path).read_text("utf-8").splitlines()
    return [f"{path}:{number}: {line.strip()[:100]}" for number, line in enumerate(lines, 1) if pattern.search(line)]


def test_no_machine_is_named():
    assert [found for path in text_files() for found in findings(MACHINE, path)] == []


def test_no_secret_is_committed():
    assert [found for path in text_files() for found in findings(SECRET, path)] == []


@pytest.mark.parametrize("text", ["cd /wor" + "k/main", "path=/hom" + "e/ann/x", "https://py" + "pi.org/simple"])
def test_a_machine_is_noticed(text):
    assert MACHINE.search(text)


@pytest.mark.parametrize("text", ["key = 'pp" + "o_" + "a" * 32 + "'", "-----BEGIN RSA PRIV" + "ATE KEY-----"])
def test_a_secret_is_noticed(text):
    assert SECRET.search(text)


def test_large_files_are_few():
    """Weights of the test model are the only large thing; anything else over 1 MB is a mistake."""
    large = [path for path in repository_files() if (ROOT / path).stat().st_size > 1_000_000]
    assert [path for path in large if not path.endswith(".safetensors")] == []


def test_the_generated_secrets_cannot_be_committed():
    """`sh deploy/env.sh > .env` writes them."""
    assert subprocess.run(["git", "check-ignore", "--quiet", ".env"], cwd=ROOT, check=False).returncode == 0
