"""`docs/reference/from-storm-kafka.md` names the setting for each field of the older spouts."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from kafka import KafkaConsumer

from downspout.batches.setup import REFUSED
from downspout.kafka.client import CONSUMER
from downspout.settings import CLIENT_PREFIX, SETTINGS
from downspout.spout import CHUNKS, SCHEMES, tuples
from spouts.batches import KafkaBatches

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/from-storm-kafka.md"
FIELDS = {
    "KafkaConfig": "hosts topic clientId fetchSizeBytes socketTimeoutMs fetchMaxWait minFetchByte bufferSizeBytes "
    "scheme ignoreZkOffsets startOffsetTime maxOffsetBehind useStartOffsetTimeIfOffsetOutOfRange "
    "metricsTimeBucketSizeInSecs",
    "SpoutConfig": "zkServers zkPort zkRoot id outputStreamId stateUpdateIntervalMs failedMsgRetryManagerClass "
    "retryInitialDelayMs retryDelayMultiplier retryDelayMaxMs retryLimit",
    "TridentKafkaConfig": "coordinator fetchSizeBytes",
    "KafkaSpoutConfig": "kafkaProps subscription topicFilter topicPartitioner pollTimeoutMs translator "
    "offsetCommitPeriodMs maxUncommittedOffsets firstPollOffsetStrategy "
    "startTimeStamp retryService tupleListener partitionRefreshPeriodMs "
    "emitNullTuples keyDes keyDesClazz valueDes valueDesClazz processingGuarantee tupleTrackingEnforced "
    "metricsTimeBucketSizeInSecs bootstrapServers groupId maxPollRecords maxRetries",
    "KafkaTridentSpoutConfig": "kafkaProps topicFilter topicPartitioner pollTimeoutMs translator "
    "firstPollOffsetStrategy startTimeStamp partitionRefreshPeriodMs",
    "topologies and their states": "newStream(txId) OpaqueTridentKafkaSpout TransactionalTridentKafkaSpout "
    "topology.max.spout.pending topology.trident.batch.emit.interval.millis transactional.zookeeper.root "
    "transactional.zookeeper.servers transactional.zookeeper.port StateFactory StateType groupBy ReducerAggregator "
    "CombinerAggregator StateUpdater",
}
"""The fields that each of Storm's classes has, and those of ``KafkaConfig`` that batches read otherwise."""
NUMBERS = {5: "five"}
SPEC = "KafkaBatches.spec(coordinator=…)"


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, by cells."""
    lines = [line for line in section(heading).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_has_a_row(name: str) -> None:
    """No field is missing, and none is made up."""
    assert sorted(row[0].strip("`") for row in rows(name)) == sorted(FIELDS[name].split())


def section(heading: str) -> str:
    """Return the text below a heading, up to the next one."""
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    [text] = [part for part in parts if part.splitlines()[0].rpartition(": ")[2] == heading]
    return text


def default_of(key: str) -> str:
    """Return the default of a setting, or of a property of the client, as the page writes it."""
    prop = key.removeprefix(CLIENT_PREFIX)
    if prop == "client_id":
        return "the client's"
    value = SETTINGS[key].default if prop == key else {**KafkaConsumer.DEFAULT_CONFIG, **CONSUMER}[prop]
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case int() if prop.endswith(("_bytes", "bytes_max")) and value >= 1024**2:
            return f"{value // 1024**2} MiB"
        case int():
            return f"{value:,}"
        case list():
            return f"{NUMBERS[len(value)]} fields"
    return f"`{value}`"


@pytest.mark.parametrize("name", FIELDS)
def test_each_row_names_settings_that_there_are_or_says_why_not(name: str) -> None:
    """What stands in the column "here" are keys of the table of settings, or properties of the client."""
    for field, _, here, _, remark in rows(name):
        if here == "–":
            assert remark.endswith("."), field
            continue
        for key in re.findall(r"`([^`]+)`", here):
            prop = key.removeprefix(CLIENT_PREFIX)
            known = prop == "…" or prop in KafkaConsumer.DEFAULT_CONFIG if prop != key else key in SETTINGS
            assert known or key == SPEC, f"{field}: {key}"
    assert "coordinator" in inspect.signature(KafkaBatches.spec).parameters


@pytest.mark.parametrize("name", FIELDS)
def test_each_row_gives_the_default_that_its_setting_has(name: str) -> None:
    """Where one setting takes a field's place, its default is that of the code."""
    for field, _, here, default, _ in rows(name):
        keys = re.findall(r"`([^`]+)`", here)
        is_one = len(keys) == 1 and "…" not in keys[0]
        assert default == (default_of(keys[0]) if is_one else ""), field


def test_what_a_fetch_waits_for_in_chunk_mode_is_as_the_page_says() -> None:
    """The two defaults that depend on the mode are in the remarks."""
    remarks = {row[0].strip("`"): row[4] for row in rows("KafkaConfig")}
    found = CHUNKS.gathering({})
    assert found is not None
    assert remarks["fetchMaxWait"].startswith(f"{found.wait_ms} in chunk mode;")
    assert remarks["minFetchByte"].startswith(f"{found.min_bytes:,} in chunk mode;")


def test_what_batches_refuse_is_what_the_page_says() -> None:
    """No setting of the spout is offered for Trident's spouts that batches do not take."""
    refused = {f"kafka.{name}" for name in REFUSED}
    assert set(re.findall(r"`(kafka\.\w+)`", section("TridentKafkaConfig"))) == refused
    for name in ("KafkaTridentSpoutConfig", "topologies and their states"):
        assert not refused.intersection(key for row in rows(name) for key in re.findall(r"`([^`]+)`", row[2])), name


def test_each_setting_of_batches_and_states_is_on_the_page() -> None:
    """It takes the place of something in Trident, or the page says that nothing there does."""
    named = set(re.findall(r"`((?:batch|state)\.\w+)`", PAGE.read_text(encoding="utf-8")))
    assert named == {key for key in SETTINGS if key.startswith(("batch.", "state."))}


def test_each_scheme_has_a_row_with_its_fields_and_values() -> None:
    """The table of schemes is that of the code, also for a record without a value."""
    table = {row[0].strip("`"): row for row in rows("Schemes")}
    assert {name: tuple(re.findall(r"`(\w+)`", row[2])) for name, row in table.items()} == SCHEMES
    record = SimpleNamespace(topic="orders", partition=2, offset=7, key=b"k", value=b"v")
    no_key, no_value = (SimpleNamespace(**{**vars(record), name: None}) for name in ("key", "value"))
    for name, (_, _, _, *told) in table.items():
        values, without = ([ast.literal_eval(text) for text in re.findall(r"`([^`]+)`", cell)] for cell in told)
        translate = getattr(tuples, name)
        assert values == [translate(record), translate(no_key)][: len(values)], name
        assert without == [translate(no_value)], name
