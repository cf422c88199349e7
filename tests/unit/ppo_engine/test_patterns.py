"""Regular expressions of users: what would hurt the process that reads them is refused before it is compiled."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppo_engine.patterns import MAX_PARTS, checked_pattern, compile_pattern, found

HUGE = [
    "a{1000000000}",
    "[ab]{1000000000}",
    "(){1000000000}",
    "(?:(?:a{1000}){1000}){1000}",
    "(?:(?:a{90}[)]){100}){100}",
    r"(?:a{500}\)){500}",
    "a{100000000,}",
    "a{0100000000}?",
    "(?<n>a{5}){100000000}",
    "(?if)[\\u0000-\\U0010FFFF]{9000}",
    "(?x)(a) {9000}",
    "(?x)(a) #\n{100000000}",
    "(?#x)(a)(?#y){100000000}",
    "a{\uff11\uff10\uff10\uff10\uff10\uff10\uff10\uff10\uff10}",
]
HIDDEN = ["(?x)a{1 0 0 0 0 0 0 0 0}", "(?x)a{1#}\n00000000}", "(?ix:(a){1\t00000000})", "(?x)a{ 100000000}"]


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A pattern that is compiled all the same ends this test, and not the machine."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("pattern", HUGE)
def test_a_pattern_that_would_fill_the_memory_is_not_compiled(pattern: str) -> None:
    with pytest.raises(ValueError, match=f"longer than {MAX_PARTS} parts"):
        checked_pattern(pattern)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("pattern", HIDDEN)
def test_a_count_cannot_hide_in_a_verbose_pattern(pattern: str) -> None:
    with pytest.raises(ValueError, match="braces must not hold space or a comment"):
        checked_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^(?:\d{1,3}\.){3}\d{1,3}$", "192.168.100.200"),
        (r"(?i)^[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$", "123e4567-e89b-12d3-a456-426614174000"),
        (r"^.{5000,}$", "x" * 5001),
        (r"^a{0,1000000000}$", "a"),
        (r"(?x) ( \d{4} ) - ( \d{2} )  # a date", "2026-12"),
        (r"(?if)^straße{2,3}(?<fix>!)$", "STRASSEE!"),
        (r"(?:kitten){e<=2}", "sitting kitten"),
        (r"\{ 100 \}", "{ 100 }"),
    ],
)
def test_patterns_that_people_write_still_work(pattern: str, text: str) -> None:
    assert found(compile_pattern(pattern), text)
