"""Tests with a twin: written for FakeKafka, and run on a real broker too.

A fixture that asks for ``cluster_kind`` (or ``rebalance_kind``) gets "fake" and "broker" in turn, the latter under the
mark ``broker``. A test that can have no twin says why: ``@pytest.mark.fake_only("reason")``. The run counts both kinds
and prints the reasons; a mark without a reason, or on a test that has no twin, is an error.
"""

from __future__ import annotations

from collections import Counter

import pytest

BROKER = pytest.param("broker", marks=pytest.mark.broker)
KINDS = {"cluster_kind": ["fake"], "rebalance_kind": ["eager", "cooperative"]}
"""Name of a fixture → its values on the fake."""
REASON_LENGTH_MIN = 10


class Twins:
    """Makes the twins, and counts the tests that have one and those that have none."""

    def __init__(self) -> None:
        self._both: set[str] = set()
        self._fake_only: Counter[str] = Counter()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Let a test run on the fake, and on the broker unless it says why not."""
        mark = metafunc.definition.get_closest_marker("fake_only")
        kinds = [name for name in KINDS if name in metafunc.fixturenames]
        if mark is None:
            for name in kinds:
                metafunc.parametrize(name, [*KINDS[name], BROKER], indirect=True, scope="function")
            self._both.update([metafunc.definition.nodeid] if kinds else [])
            return
        where = metafunc.definition.nodeid
        reason = mark.args[0] if len(mark.args) == 1 else ""
        if not isinstance(reason, str) or len(reason) < REASON_LENGTH_MIN:
            raise pytest.UsageError(f"{where}: fake_only needs the reason why the broker cannot run it")
        if not kinds:
            raise pytest.UsageError(f"{where}: fake_only, but it has no twin on the broker to begin with")
        for name in kinds:
            metafunc.parametrize(name, KINDS[name], indirect=True, scope="function")
        self._fake_only[reason] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many tests have a twin, and why the others have none."""
        if not self._both and not self._fake_only:
            return
        alone = sum(self._fake_only.values())
        terminalreporter.write_line(
            f"{len(self._both)} tests of FakeKafka are written for the real broker too, {alone} for the fake alone:"
        )
        for reason, count in sorted(self._fake_only.items(), key=lambda found: (-found[1], found[0])):
            terminalreporter.write_line(f"  {count:3} {reason}")


def pytest_configure(config: pytest.Config) -> None:
    """Start counting."""
    config.addinivalue_line(
        "markers", "fake_only(reason): cannot run on the real broker, and why; the run prints the reasons"
    )
    config.pluginmanager.register(Twins(), "downspout-twins")


@pytest.fixture
def cluster_kind(request: pytest.FixtureRequest) -> str:
    """What a test's Kafka is: "fake" or "broker"."""
    return str(request.param)


@pytest.fixture
def rebalance_kind(request: pytest.FixtureRequest) -> str:
    """How the fake rebalances: "eager" or "cooperative"; or "broker"."""
    return str(request.param)
