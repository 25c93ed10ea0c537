"""The options of the source, without Spark and without Kafka."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from downspout.errors import ConfigError
from downspout.kafka import Limits
from downspout.spark import SourceOptions, parse_options
from downspout.spark.kafka_options import EARLIEST, LATEST, OPTIONS, client_properties

NEEDED = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
ROOT = Path(__file__).resolve().parents[3]


def parse(streaming: Any = True, **options: str) -> SourceOptions:
    return parse_options(NEEDED | options, streaming=streaming)


def test_defaults_are_those_of_the_connector() -> None:
    """A stream starts at the end, a batch query takes everything, and lost data is an error."""
    stream, batch = parse(), parse(streaming=False)
    assert (stream.starting.everywhere, batch.starting.everywhere, batch.ending.everywhere) == (
        LATEST,
        EARLIEST,
        LATEST,
    )
    assert stream.fail_on_data_loss
    assert not stream.include_headers
    assert (stream.min_partitions, stream.offsets_per_trigger_max, stream.offsets_per_trigger_min) == (None, None, None)
    assert stream.trigger_delay_ms_max == 15 * 60 * 1000


def test_names_are_known_in_any_case() -> None:
    """Spark hands options over in lower case, and users write them as they like."""
    found = parse_options(
        {"KAFKA.Bootstrap.Servers": "h:1", "SUBSCRIBE": "a, b,a", "MinPartitions": "3"}, streaming=True
    )
    assert (found.bootstrap, found.topics, found.min_partitions) == ("h:1", ("a", "b"), 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingofset": "latest"}, "startingofset is not an option of the source. Try: startingOffsets"),
        ({"subscribePattern": "x.*"}, "exactly one of subscribe, subscribePattern and assign is needed, not"),
        ({"endingOffsets": "latest"}, "endingOffsets is for batch queries"),
        ({"startingOffsets": "{"}, "startingOffsets is neither a known word nor JSON"),
        ({"startingOffsets": "erliest"}, "startingOffsets is neither a known word"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "startingOffsets is not of the form"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp = yesterday is not a whole number of at least 0"),
        ({"startingOffsetsByTimestampStrategy": "nearest"}, "Try: error or latest"),
        ({"skipOffset": "{}"}, "skipoffset is not an option of the source. Try: skipOffsets"),
        ({"stopingOffsets": "{}"}, "stopingoffsets is not an option of the source. Try: stoppingOffsets"),
        ({"stoppingOffsets": "latest"}, "stoppingOffsets is neither a known word nor JSON"),
        ({"stoppingOffsets": '{"t": {"0": -1}}'}, "stoppingOffsets is not of the form"),
        ({"stoppingOffsets": '{"u": {"0": 5}}'}, "stoppingOffsets names u[0], which is not read"),
        ({"skipOffsets": '{"u": {"0": [[5, 9]]}}'}, "skipOffsets names u[0], which is not read"),
        ({"minPartitions": "0"}, "minPartitions = 0 is not a whole number of at least 1"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger = many"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay = soon is not a duration"),
        ({"includeHeaders": "yes"}, "includeHeaders = yes is neither true nor false"),
        ({"subscribe": " , "}, "subscribe does not name a topic"),
        ({"kafka.bootstrap.servers": "http//x:y"}, "is not an address"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset cannot be set. Try: startingOffsets"),
        ({"kafka.key.deserializer": "x"}, "kafka.key.deserializer cannot be set"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit cannot be set"),
        ({"kafka.fetch.max.byts": "1"}, "is not a property of the client. Try: kafka.fetch.max.bytes"),
        ({"kafka.fetch.max.bytes": "1m"}, "kafka.fetch.max.bytes is not a whole number"),
        ({"kafka.check.crcs": "maybe"}, "kafka.check.crcs is neither true nor false"),
    ],
)  # fmt: skip
def test_bad_options_are_named(options: dict[str, Any], said: str) -> None:
    """Every mistake is an error that names the option and says what would be right."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest in a batch query"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "startingOffsets cannot be latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "endingOffsets cannot be earliest"),
    ],
)
def test_a_batch_that_could_only_be_empty_is_refused(options: dict[str, str], said: str) -> None:
    """A batch query from the end, or up to the beginning, is a mistake."""
    with pytest.raises(ConfigError, match=said):
        parse(streaming=False, **options)


@pytest.mark.parametrize(
    "value", ["[]", "{}", '{"t": []}', '{"t": 0}', '{"t": [-1]}', '{"t": [true]}', '{"t": ["0"]}', "t"]
)
def test_assign_has_one_form(value: str) -> None:
    """assign takes topics with lists of partition numbers, and nothing else."""
    with pytest.raises(ConfigError, match="assign"):
        parse_options({"kafka.bootstrap.servers": "h", "assign": value}, streaming=True)


@pytest.mark.parametrize(
    "value",
    ["", "5", "[]", '{"t": [[5, 9]]}', '{"t": {"0": [5, 9]}}', '{"t": {"0": [[9, 5]]}}', '{"t": {"0": [[5, 5]]}}',
     '{"t": {"0": [[-1, 5]]}}', '{"t": {"0": [[5, 9, 11]]}}', '{"t": {"0": [[true, 5]]}}', '{"t": {"x": [[5, 9]]}}',
     '{"t": {"id": 7}}', '{"t": {"0": "5-9"}}'],
)  # fmt: skip
def test_ranges_to_skip_have_one_form(value: str) -> None:
    """skipOffsets takes lists of pairs, the first number of each below the second, and nothing else."""
    with pytest.raises(
        ConfigError, match=re.escape("skipOffsets is not of the form {topic: {partition: [[from, to]]}}")
    ):
        parse(skipOffsets=value)


def test_our_own_options_serve_both_kinds_of_query() -> None:
    """stoppingOffsets and skipOffsets hold for streams and batches; ranges that overlap or touch are one."""
    given: dict[str, Any] = {
        "stoppingOffsets": '{"t": {"1": 7}}',
        "skipOffsets": '{"t": {"0": [[7, 9], [1, 2], [2, 4], [3, 5]]}}',
    }
    for streaming in (True, False):
        found = parse(streaming, **given)
        assert found.stopping == {TopicPartition("t", 1): 7}
        assert found.skips.ranges == {TopicPartition("t", 0): ((1, 5), (7, 9))}
    assert parse(**given, startingOffsets='{"t": {"0": 3, "1": 7}}').stopping == {TopicPartition("t", 1): 7}


def test_limits_are_those_of_other_readers_and_have_bounds() -> None:
    """What records and batches may unpack to is limited by default too; the columns are as the options say."""
    assert (parse().limits, parse().include_unreadable) == (Limits(), False)
    found = parse(recordBytesMax="2048", includeUnreadable="Records")
    assert (found.limits, found.unreadable, found.include_unreadable) == (Limits(2048, 8192), "records", True)
    for wrong, said in (
        ({"recordBytesMax": "100"}, "recordBytesMax = 100 is not a whole number of at least 1024"),
        ({"recordBytesMax": "1073741825"}, "recordBytesMax = 1073741825 is too large. Try: 1073741824 at most"),
        ({"includeUnreadable": "yes"}, "includeUnreadable = yes is unknown. Try: false, records or true"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            parse(**wrong)


def test_positions_have_an_order() -> None:
    """A moment for all precedes moments by partition, and these precede offsets, as with the connector."""
    offsets, moments = {"startingOffsets": '{"t": {"0": 5}}'}, {"startingOffsetsByTimestamp": '{"t": {"0": 9}}'}
    where = TopicPartition("t", 0)
    assert parse(**offsets).starting.offsets == {where: 5}
    assert parse(**offsets, **moments).starting.timestamps_ms == {where: 9}
    assert parse(**offsets, **moments, startingTimestamp="7").starting.timestamp_ms == 7
    assert not parse(startingTimestamp="7").starting.latest_if_none
    assert parse(startingTimestamp="7", startingOffsetsByTimestampStrategy="latest").starting.latest_if_none
    assert parse(streaming=False, endingTimestamp="7").ending.latest_if_none


def test_what_the_connector_ignores_is_ignored() -> None:
    """Options of the other kind of query, and how to be a member of a group, may stay when a job moves here."""
    found = parse(streaming=False, maxOffsetsPerTrigger="5", **{"kafka.session.timeout.ms": "10000"})
    assert found.client == {}


@pytest.mark.parametrize("name", ["groupIdPrefix", "kafka.group.id"])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_groups_name_is_refused_and_not_ignored(name: str, streaming: bool) -> None:
    """The source reads without a group; the error says so, and what shows progress under a group's name."""
    with pytest.raises(ConfigError, match=f"{name} cannot be set") as caught:
        parse(streaming=streaming, **{name: "g"})
    assert "without a consumer group" in str(caught.value)
    assert "commit_progress" in str(caught.value)


def test_client_properties_get_their_types() -> None:
    """Java's names become kafka-python's, and text becomes numbers and truth values."""
    given = {
        "isolation.level": "read_uncommitted",
        "fetch.min.bytes": "64",
        "check.crcs": "False",
        "receive.buffer.bytes": "65536",
        "client.id": "7",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.keystore.location": "me.pem",
        "ssl.key.password": "k",
        "ssl.keystore.password": "s",
    }
    assert client_properties(given) == {
        "isolation_level": "read_uncommitted",
        "fetch_min_bytes": 64,
        "check_crcs": False,
        "receive_buffer_bytes": 65536,
        "client_id": "7",
        "ssl_check_hostname": False,
        "ssl_certfile": "me.pem",
        "ssl_keyfile": "me.pem",
        "ssl_password": "k",
    }


def test_key_stores_of_java_are_refused() -> None:
    """A JKS store, which Python cannot read, is refused with the way out."""
    for name in ("ssl.truststore.location", "ssl.keystore.location"):
        with pytest.raises(ConfigError, match="must name a PEM file"):
            client_properties({name: "store.jks"})
        with pytest.raises(ConfigError, match="must name a PEM file"):
            client_properties({name: "store", name.replace("location", "type"): "PKCS12"})


def test_secrets_are_in_no_text() -> None:
    """Neither the options' own text nor an error about a malformed login shows a password."""
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="hunter\\"2";'
    found = parse(**{"kafka.sasl.jaas.config": login, "kafka.sasl.mechanism": "SCRAM-SHA-256"})
    assert found.client["sasl_plain_password"] == 'hunter"2'
    assert "hunter" not in repr(found)
    with pytest.raises(ConfigError) as caught:
        parse(**{"kafka.sasl.jaas.config": 'OAuthBearerLoginModule required password="hunter2";'})
    assert "hunter2" not in str(caught.value)


def test_options_travel() -> None:
    """Options pickle, which is how they reach the executors."""
    options = parse(
        startingOffsets='{"t": {"0": 5}}', skipOffsets='{"t": {"0": [[5, 9]]}}', **{"kafka.fetch.min.bytes": "64"}
    )
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_documentation_lists_every_option() -> None:
    """The reference page holds the table that is made from the options."""
    page = (ROOT / "docs" / "reference" / "spark-source.md").read_text(encoding="utf-8")
    for name, option in OPTIONS.items():
        assert f"| `{name}` | {option.default} |" in page
