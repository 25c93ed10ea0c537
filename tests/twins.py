"""Tests with a twin: written for FakeKafka, and run on a real broker too.

The fixture ``bare_kafka`` (and each that is built on it) is the fake and a real broker in turn, the latter under the
mark ``broker``; so is ``wide_kafka``, the fake under both rebalance protocols. ``make test`` runs a third of the twins
on the broker, and of a test with parameters one set: which, goes by the commit. ``make test-all`` runs them all. A test
that uses FakeKafka and has no twin says why: ``@pytest.mark.fake_only("reason")``, or ``pytestmark`` for a module. The
run counts both kinds and prints the reasons. A test that says nothing is an error, and so is a mark without a reason.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from tests.sampling import WHOLE, chosen, sample_name

if TYPE_CHECKING:
    from tests.spout.broker_kafka import Backstage
    from tests.spout.spout_driver import Kafka

BROKER = pytest.param("broker", marks=pytest.mark.broker)
KINDS = {"cluster_kind": ["fake"], "rebalance_kind": ["eager", "cooperative"]}
"""Name of a fixture → its values on the fake."""
CONTRACT = "tests/kafka/test_contract_fake.py"
"""Its twin is a module: ``tests/broker/test_contract_broker.py``."""
ONE_TWIN_OF = 3
REASON_LENGTH_MIN = 10


class Twins:
    """Makes the twins, and counts the tests that have one and those that have none."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        """Test → why it has no twin; empty: it has one"""
        self._run: dict[str, str] = {}
        """the same, of those that were run"""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Let a test run on the fake, and on the broker unless it says why not."""
        mark = metafunc.definition.get_closest_marker("fake_only")
        where = metafunc.definition.nodeid
        kinds = [name for name in KINDS if name in metafunc.fixturenames]
        for name in kinds:
            values = [*KINDS[name], *([] if mark else [BROKER])]
            metafunc.parametrize(name, values, indirect=True, scope="function")
        if not kinds and not uses_fake(metafunc):
            return
        if mark is None:
            if not kinds and not where.startswith(CONTRACT):
                raise pytest.UsageError(f"{where} uses FakeKafka: let it use bare_kafka, or say why not (fake_only)")
            self._reasons[where] = ""
            return
        reason = mark.args[0] if len(mark.args) == 1 else ""
        if not isinstance(reason, str) or len(reason) < REASON_LENGTH_MIN:
            raise pytest.UsageError(f"{where}: fake_only needs the reason why the broker cannot run it")
        self._reasons[where] = reason

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out twins that are not in the sample; let a test's report say the reason, which may come from afar."""
        if not WHOLE and (left_out := left_out_on_broker(items)):
            items[:] = [item for item in items if item not in left_out]
            config.hook.pytest_deselected(items=list(left_out))
        for item in items:
            if (reason := self._reasons.get(_function(item.nodeid))) is not None:
                item.user_properties.append(("twin", reason))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, reason in report.user_properties:
            if name == "twin":
                self._run[_function(report.nodeid)] = str(reason)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many tests have a twin, and why the others have none."""
        if not self._run:
            return
        fake_only = Counter(reason for reason in self._run.values() if reason)
        alone = sum(fake_only.values())
        both = len(self._run) - alone
        terminalreporter.write_line(
            f"{both} tests of FakeKafka are written for the real broker too, {alone} for the fake alone:"
        )
        for reason, count in sorted(fake_only.items(), key=lambda found: (-found[1], found[0])):
            terminalreporter.write_line(f"  {count:3} {reason}")


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def left_out_on_broker(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the twins on the broker but a sample: of a third of the tests one each. Which, goes by the commit."""
    twins = [item for item in items if "broker" in (_parameters(item).get(name) for name in KINDS)]
    kept: dict[str, pytest.Item] = {}
    for twin in sorted(twins, key=lambda item: crc32(f"{sample_name()} {item.name}".encode())):
        kept.setdefault(_function(twin.nodeid), twin)
    return set(twins) - {twin for test, twin in kept.items() if chosen(test, ONE_TWIN_OF)}


def _parameters(item: pytest.Item) -> dict[str, Any]:
    call = getattr(item, "callspec", None)
    return {} if call is None else dict(call.params)


def uses_fake(metafunc: pytest.Metafunc) -> bool:
    """Return whether a test, or a fixture of its, makes a FakeKafka."""
    property_test = getattr(metafunc.function, "hypothesis", None)
    used = [property_test.inner_test if property_test else metafunc.function]
    used += [found[-1].func for found in metafunc._arg2fixturedefs.values()]
    return any(_names(one, "FakeKafka") for one in used)


def _names(function: Callable[..., Any], name: str) -> bool:
    return name in getattr(inspect.unwrap(function), "__code__", _names.__code__).co_names


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "fake_only(reason): cannot run on the real broker, and why; the run prints the reasons"
    )
    config.pluginmanager.register(Twins(), "downspout-twins")


@pytest.fixture
def cluster_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rebalance_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bare_kafka(cluster_kind: str, request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """A Kafka without any topic: the fake, and a real broker."""
    yield from _kafka(cluster_kind, request)


@pytest.fixture
def wide_kafka(rebalance_kind: str, request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """A Kafka without any topic: the fake under both rebalance protocols, and a real broker."""
    yield from _kafka(rebalance_kind, request)


@pytest.fixture(scope="session")
def backstage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backstage]:
    """A broker that one test after the other has to itself."""
    from downspout.broker import EmbeddedKafka
    from downspout.testing import UNHURRIED
    from tests.spout.broker_kafka import Backstage

    # A JVM of a busy machine may need more than a minute, its usual limit.
    with EmbeddedKafka(tmp_path_factory.mktemp("twins"), properties=UNHURRIED, start_s_max=240.0) as broker:
        made = Backstage(broker.bootstrap)
        yield made
        made.close()


def _kafka(kind: str, request: pytest.FixtureRequest) -> Iterator[Kafka]:
    from downspout.testing import FakeKafka
    from tests.spout.broker_kafka import BrokerKafka

    if kind == "broker":
        broker = BrokerKafka(request.getfixturevalue("backstage"))
        yield broker
        broker.close()
        return
    with FakeKafka("twin", cooperative=kind == "cooperative") as fake:
        yield fake
