"""Rules that hold for the whole suite: no silent skips in CI, and the real things are counted."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.kafka", "tests.spout")

from downspout.outages import OUTAGES  # noqa: E402
from downspout.sink import Disk  # noqa: E402
from tests import twins  # noqa: E402
from tests.offsets.postgres_fixtures import postgres  # noqa: E402, F401   (likewise)
from tests.sampling import WHOLE, sample_name  # noqa: E402
from tests.scheduling import OneHeavyAtOnce, into_groups, left_out, limit_of, write_timings  # noqa: E402
from tests.security.brokers import any_kafka, scram_kafka  # noqa: E402, F401   (fixtures, for more than one room)
from tests.twins import backstage, bare_kafka, cluster_kind, rebalance_kind, wide_kafka  # noqa: E402, F401   (fixtures)

# How long an example takes says something about the machine, not about us. `make test` tries the same examples each
# time: what it refuses is the change. `make test-all` draws new ones, from a seed that it prints. Here, since a test
# takes the settings that hold when its module is imported.
settings.register_profile(
    "any machine", deadline=None, derandomize=not WHOLE, print_blob=True, suppress_health_check=[HealthCheck.too_slow],
    max_examples=100 if WHOLE else 30,
)  # fmt: skip
settings.load_profile("any machine")

# A shell that runs us in the background has us ignore Ctrl-C, and with us all that the tests start and send it to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REAL = {"broker": "the real broker", "spark": "real PySpark", "storm": "a real Storm"}
TRIED_TWICE = (*REAL, "slow")
"""Marks of tests that start processes, or speak to them."""

NAMESPACES = "it needs root on Linux, for network namespaces"
PARTITIONS = "tests/partitions/test_partitions.py::test_"
SKIPS_ALLOWED_IN_CI: dict[str, str] = {
    **{
        f"{PARTITIONS}rows_are_exact_and_everybody_goes_on[{sink}]": NAMESPACES
        for sink in ("disk", "s3", "kafka", "sql")
    },
    f"{PARTITIONS}a_transactional_bolt_outlives_ten_pauses_of_brokers": NAMESPACES,
}
"""Test id → the reason why it may be skipped with CI=true. Keep it short."""


class RealCounts:
    """Counts the tests that passed against the real things, and notes skips that nobody allowed.

    Tests may run in several processes. What is known of one travels with its report, in its user properties.
    """

    def __init__(self) -> None:
        self.passed = dict.fromkeys(REAL, 0)
        self.skipped: list[str] = []
        self.tried_again: list[str] = []
        self.took_s: Any = Counter()  # floats, which typeshed does not know
        """Seconds by ring, and by folder of tests: a fixture counts where it was made."""
        self.test_took_s: Any = Counter()
        """Seconds by test."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note who is marked; a report's keywords hold the names of parameters too.

        A test on a real server has a second try. On a busy machine a server may be silent for longer than any limit
        that makes sense in a test. What fails twice fails the run, and the summary names what failed once.
        """
        for item in items:
            item.user_properties += [("real", marker) for marker in REAL if item.get_closest_marker(marker)]
            if any(item.get_closest_marker(marker) for marker in TRIED_TWICE):
                item.add_marker(pytest.mark.flaky(reruns=1))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(limit_of(item, whole=WHOLE)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ring = next((str(marker) for name, marker in report.user_properties if name == "real"), "neither")
        self.took_s[ring] += report.duration
        self.test_took_s[report.nodeid.partition("@")[0]] += report.duration
        self.took_s["/".join(report.nodeid.partition("::")[0].split("/")[:-1])] += report.duration
        if report.when == "call" and report.passed:
            for name, marker in report.user_properties:
                if name == "real":
                    self.passed[str(marker)] += 1
        if report.outcome == "rerun":
            self.tried_again.append(f"{report.nodeid} ({report.when})")
        if report.skipped and report.nodeid.partition("@")[0] not in SKIPS_ALLOWED_IN_CI:
            self.skipped.append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for marker, name in REAL.items():
            terminalreporter.write_line(f"{self.passed[marker]} tests passed against {name}")
        rings = ", ".join(f"{ring} {self.took_s.pop(ring, 0.0) / 60:.1f}" for ring in (*REAL, "neither"))
        folders = ", ".join(f"{folder} {took_s / 60:.1f}" for folder, took_s in self.took_s.most_common(12))
        terminalreporter.write_line(f"minutes of tests by ring: {rings}; by folder: {folders}")
        if self.tried_again:
            terminalreporter.write_line(f"failed once, and tried again: {', '.join(self.tried_again)}", yellow=True)
        if self.skipped and os.environ.get("CI") == "true":
            terminalreporter.write_line(f"skipped without being allowed to: {', '.join(self.skipped)}", red=True)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a CI run in which a test was skipped that is not on the list; record the timings of a whole run."""
        if WHOLE and session.exitstatus == 0 and session.config.getvalue("dist") == "loadgroup":
            write_timings(dict(self.test_took_s))
        if self.skipped and os.environ.get("CI") == "true" and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_report_header(config: pytest.Config) -> str:
    """Say how the run can be had again: the random examples of a whole one, or the sample."""
    if WHOLE:
        return f"all sweeps whole: HYPOTHESIS_SEED={config.getoption('--hypothesis-seed')}"
    return f"sample of the sweeps: SAMPLE={sample_name()}"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RealCounts(), "downspout-real-counts")
    twins.pytest_configure(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return OneHeavyAtOnce(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make test-all` runs; put the rest into groups, in one of several processes."""
    if not WHOLE:
        swept = {item for item in items if item.get_closest_marker("sweep")}
        swept |= set(left_out([item for item in items if item not in swept]))
        if swept:
            items[:] = [item for item in items if item not in swept]
            config.hook.pytest_deselected(items=[*swept])
    if getattr(config.option, "loadgroup", False):
        into_groups(items)


_HOMES = itertools.count()


@pytest.fixture(autouse=True)
def _no_outage_lasts() -> Iterator[None]:
    """Forget what a test waited for: others would see it."""
    yield
    OUTAGES.forget()


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep state out of the checkout, and settings out of the user's environment.

    The notes of what processes have in their hands are in the temporary directory, by the topology's id, and many
    topologies of tests have the same.
    """
    for name in [name for name in os.environ if name.startswith("DOWNSPOUT_") and name != "DOWNSPOUT_CACHE"]:
        monkeypatch.delenv(name)
    base = tmp_path_factory.getbasetemp()
    number = next(_HOMES)  # pytest's mktemp scans all folders that there are: 30 ms after 3,200 tests
    home, temporary = base / f"own-home{number}", str(base / f"own-tmp{number}")
    home.mkdir()
    os.mkdir(temporary)
    monkeypatch.setenv("DOWNSPOUT_HOME", str(home))
    monkeypatch.setenv("TMPDIR", temporary)
    monkeypatch.setattr(tempfile, "tempdir", temporary)


@pytest.fixture(autouse=True)
def _topologies_are_forgotten(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Forget the modules of a test's topologies, and the folders that a command added to Python's path for them."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    temporary = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(temporary):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _log_is_whole_text_and_the_tests(request: pytest.FixtureRequest) -> None:
    """Undo what a command and PySpark do to the log that tests look at, and what shared clients write into it.

    A command shows kafka-python's lines only now and then, in each handler that there is: pytest's stay for the tests
    that follow. For errors in a query PySpark makes loggers that do not propagate and turn each handler that they are
    given to JSON. pytest gives its own handlers to all loggers that do not propagate. A client of kafka-python that was
    there before the test asks for its topics again every five minutes, in a thread of its own, and tells which are
    gone: that is not the test's.
    """
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        if name in logging.root.manager.loggerDict:
            logging.getLogger(name).propagate = True
    older = {thread.ident for thread in threading.enumerate() if thread.name.startswith("kafka-io-")}
    if (plugin := request.config.pluginmanager.get_plugin("logging-plugin")) is not None:
        for handler in (plugin.caplog_handler, plugin.report_handler):
            handler.setFormatter(plugin.formatter)
            handler.filters.clear()
            handler.addFilter(lambda record: record.thread not in older)
    for name in ("kafka", "kafka.coordinator.assignors"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture(autouse=True, scope="session")
def _sinks_force_nothing_to_the_disk() -> Iterator[None]:
    """No test cuts the power of this machine, and each flush would wait for the disk a dozen times.

    What is durable when is tested on a simulated disk, in ``tests/crash``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Disk, "sync", lambda self, path: os.close(os.open(path, os.O_RDONLY)))
        yield
