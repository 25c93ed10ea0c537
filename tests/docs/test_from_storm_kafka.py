"""`docs/reference/from-storm-kafka.md` says of each field of the older spouts which setting takes its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kafka import KafkaConsumer

from downspout.settings import CLIENT_PREFIX, SETTINGS
from downspout.spout import SCHEMES

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/from-storm-kafka.md"
FIELDS = {
    "KafkaConfig": "hosts topic clientId fetchSizeBytes socketTimeoutMs fetchMaxWait minFetchByte bufferSizeBytes "
    "scheme ignoreZkOffsets startOffsetTime maxOffsetBehind useStartOffsetTimeIfOffsetOutOfRange "
    "metricsTimeBucketSizeInSecs",
    "SpoutConfig": "zkServers zkPort zkRoot id outputStreamId stateUpdateIntervalMs failedMsgRetryManagerClass "
    "retryInitialDelayMs retryDelayMultiplier retryDelayMaxMs retryLimit",
    "TridentKafkaConfig": "coordinator",
    "KafkaSpoutConfig": "kafkaProps subscription topicFilter topicPartitioner pollTimeoutMs translator "
    "offsetCommitPeriodMs maxUncommittedOffsets firstPollOffsetStrategy "
    "startTimeStamp retryService tupleListener partitionRefreshPeriodMs "
    "emitNullTuples keyDes keyDesClazz valueDes valueDesClazz processingGuarantee tupleTrackingEnforced "
    "metricsTimeBucketSizeInSecs bootstrapServers groupId maxPollRecords maxRetries",
    "KafkaTridentSpoutConfig": "kafkaProps topicFilter topicPartitioner pollTimeoutMs translator "
    "firstPollOffsetStrategy startTimeStamp partitionRefreshPeriodMs",
}
"""The fields that each of Storm's classes has."""


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, by cells."""
    section = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    [text] = [part for part in section if part.splitlines()[0].rpartition(": ")[2] == heading]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_has_a_row(name: str) -> None:
    """No field is missing, and none is made up."""
    assert sorted(row[0].strip("`") for row in rows(name)) == sorted(FIELDS[name].split())


@pytest.mark.parametrize("name", FIELDS)
def test_each_row_names_settings_that_there_are_or_says_why_not(name: str) -> None:
    """What stands in the column "here" are keys of the table of settings, or properties of the client."""
    for field, _, here, remark in rows(name):
        if here == "–":
            assert remark.endswith("."), field
            continue
        for key in re.findall(r"`([^`]+)`", here):
            prop = key.removeprefix(CLIENT_PREFIX)
            known = prop == "…" or prop in KafkaConsumer.DEFAULT_CONFIG if prop != key else key in SETTINGS
            assert known, f"{field}: {key}"


def test_each_scheme_has_a_row_with_its_fields() -> None:
    """The table of schemes is that of the code."""
    found = {row[0].strip("`"): tuple(re.findall(r"`(\w+)`", row[2])) for row in rows("Schemes")}
    assert found == SCHEMES


def test_the_same_defaults_are_said_to_be_the_same() -> None:
    """Where the page gives a default of Storm's newer spout and says nothing, ours is the same."""
    for field, default, here, remark in rows("KafkaSpoutConfig"):
        keys = re.findall(r"`([^`]+)`", here)
        if remark or len(keys) != 1 or not default:
            continue
        ours = SETTINGS[keys[0]].default
        given = {"false": False, "true": True, "none": None, "string": "utf8"}.get(
            default, default.strip("`").replace(",", "")
        )
        assert str(ours) == str(given), field
