"""Rules that hold for the whole suite: no silent skips in CI, and the real things are counted."""

from __future__ import annotations

import logging
import os

import pytest

pytest.register_assert_rewrite("tests.kafka", "tests.topology")

from tests import twins  # noqa: E402
from tests.security.brokers import any_kafka, scram_kafka  # noqa: E402, F401   (fixtures, for more than one room)
from tests.twins import backstage, bare_kafka, cluster_kind, rebalance_kind, wide_kafka  # noqa: E402, F401   (fixtures)

REAL = {"broker": "the real broker", "spark": "real PySpark", "storm": "a real Storm"}

SKIPS_ALLOWED_IN_CI: dict[str, str] = {}
"""Test id → the reason why it may be skipped with CI=true. Keep it short."""


class RealCounts:
    """Counts the tests that passed against the real things, and notes skips that nobody allowed."""

    def __init__(self) -> None:
        self.passed = dict.fromkeys(REAL, 0)
        self.marked: dict[str, set[str]] = {marker: set() for marker in REAL}
        self.skipped: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note who is marked; a report's keywords hold the names of parameters too."""
        for item in items:
            for marker, marked in self.marked.items():
                if item.get_closest_marker(marker):
                    marked.add(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Look at one finished test."""
        if report.when == "call" and report.passed:
            for marker, marked in self.marked.items():
                self.passed[marker] += report.nodeid in marked
        if report.skipped and report.nodeid not in SKIPS_ALLOWED_IN_CI:
            self.skipped.append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many tests ran against the real things."""
        for marker, name in REAL.items():
            terminalreporter.write_line(f"{self.passed[marker]} tests passed against {name}")
        if self.skipped and os.environ.get("CI") == "true":
            terminalreporter.write_line(f"skipped without being allowed to: {', '.join(self.skipped)}", red=True)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a CI run in which a test was skipped that is not on the list."""
        if self.skipped and os.environ.get("CI") == "true" and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    """Start counting."""
    config.pluginmanager.register(RealCounts(), "downspout-real-counts")
    twins.pytest_configure(config)


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep state out of the checkout, and settings out of the user's environment."""
    for name in [name for name in os.environ if name.startswith("DOWNSPOUT_") and name != "DOWNSPOUT_CACHE"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(autouse=True)
def _log_is_text(request: pytest.FixtureRequest) -> None:
    """Undo what PySpark does to the log that tests look at.

    For errors in a query PySpark makes loggers that do not propagate and turn each handler that they are given to JSON.
    pytest gives its own handlers to all loggers that do not propagate.
    """
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        if name in logging.root.manager.loggerDict:
            logging.getLogger(name).propagate = True
    if (plugin := request.config.pluginmanager.get_plugin("logging-plugin")) is not None:
        plugin.caplog_handler.setFormatter(plugin.formatter)
        plugin.report_handler.setFormatter(plugin.formatter)
