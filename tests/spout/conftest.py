"""Kafkas for tests of the spout, which run in record mode and in chunk mode.

A test that uses ``kafka`` or ``wide`` runs twice: each record is a tuple, and each is a chunk of its own. All that
holds for the one holds for the other, attempts and letters and commits; where it cannot, the test says why
(``@pytest.mark.record_only("reason")``). On the real broker the second run is left to :data:`BOTH_ON_BROKER`, since
what happens between the client and the ledger is the same in all; of those ``make test`` runs one mode or the other
(see :mod:`tests.twins`). Chunks of many records have tests of their own.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.spout.spout_driver import PARTITIONS, RECORDS, TOPIC, Kafka, fill

RECORD_ALONE = {"test_kafka_spout_guarantees", "test_kafka_spout_translators", "test_kafka_spout_settings"}
"""Modules on what chunk mode does not have."""
BOTH_ON_BROKER = {f"test_kafka_spout_{name}" for name in ("failures", "rebalance", "unclean", "unclean_several")}
EMITS: dict[str, dict[str, Any]] = {"record": {}, "chunk": {"kafka.emit": "chunk", "kafka.chunk_records_max": 1}}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "record_only(reason): does not hold for chunks, and why")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module.__name__.rpartition(".")[2]
    mark = metafunc.definition.get_closest_marker("record_only")
    if "emit_kind" in metafunc.fixturenames and module.startswith("test_kafka_spout"):
        if mark is not None and not (mark.args and len(mark.args[0]) > 10):
            raise pytest.UsageError(f"{metafunc.definition.nodeid}: record_only needs the reason")
        kinds = ["record"] if mark is not None or module in RECORD_ALONE else ["record", "chunk"]
        metafunc.parametrize("emit_kind", kinds, indirect=True, scope="function")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the second mode would repeat on the broker."""
    repeated = [item for item in items if is_repeated(item)]
    if repeated:
        items[:] = [item for item in items if item not in set(repeated)]
        config.hook.pytest_deselected(items=repeated)


def is_repeated(item: pytest.Item) -> bool:
    """Return whether a test in chunk mode on the broker says no more than the others do."""
    call = getattr(item, "callspec", None)
    if call is None or call.params.get("emit_kind") != "chunk":
        return False
    if "broker" not in call.params.values():
        return False
    return item.path.stem not in BOTH_ON_BROKER


@pytest.fixture
def emit_kind(request: pytest.FixtureRequest) -> str:
    """What a tuple is: "record", or "chunk" of one record."""
    return str(getattr(request, "param", "record"))


@pytest.fixture
def kafka(bare_kafka: Kafka, emit_kind: str) -> Kafka:
    """A Kafka with one topic of one partition and ten records, whose values are their offsets."""
    bare_kafka.emits = EMITS[emit_kind]
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 10)
    return bare_kafka


@pytest.fixture
def wide(wide_kafka: Kafka, emit_kind: str) -> Kafka:
    wide_kafka.emits = EMITS[emit_kind]
    wide_kafka.create_topic(TOPIC, PARTITIONS)
    for partition in range(PARTITIONS):
        fill(wide_kafka, RECORDS, partition)
    return wide_kafka
