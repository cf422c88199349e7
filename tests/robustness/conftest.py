"""Prints the table of faults after the tests."""

from __future__ import annotations

import pytest

from tests.support import fault_table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if fault_table.ROWS:
        terminalreporter.section("faults")
        for line in fault_table.text():
            terminalreporter.write_line(line)
