"""`downspout lag --watch --metrics-port`: what Kafka knows of a group, for runs on other engines."""

from __future__ import annotations

import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families as read

from downspout.cli import build_parser, lag, main
from downspout.export import lag_exposed
from downspout.kafka import OffsetAndMetadata, TopicPartition
from downspout.offsets import Question
from downspout.testing import FakeKafka
from tests.export.test_run_metrics import page
from tests.spout.reasons import OTHERS_NEED_IT


@pytest.mark.fake_only(OTHERS_NEED_IT)
def test_each_look_can_be_scraped(capsys: pytest.CaptureFixture[str]) -> None:
    """The series are those of the last look; a partition without a commit has no lag."""
    found: list[dict[tuple[str, str], float]] = []
    with FakeKafka("lag-metrics") as kafka, lag_exposed("127.0.0.1", 0) as take:
        kafka.create_topic("orders", 2)
        for number in (0, 0, 0, 1):
            kafka.produce("orders", b"v", partition=number)
        consumer = kafka.consumer(group="shop")
        consumer.commit({TopicPartition("orders", 0): OffsetAndMetadata(1, "", -1)})
        consumer.close()
        url = capsys.readouterr().err.partition("at ")[2].strip()

        def show(text: str) -> None:
            families = read(page(url)[1])
            samples = [sample for family in families for sample in family.samples if sample.labels["group"] == "shop"]
            found.append({(each.name, each.labels["partition"]): each.value for each in samples})
            kafka.produce("orders", b"v", partition=0)

        words = build_parser().parse_args(["lag", "shop", "--watch", "--every", "1s", "--timeout", "2s", "--no-age"])
        lag.look(words, kafka, Question(with_age=False, clock=kafka.clock), show, kafka.clock, take)
    lags = [each["kafka_consumergroup_lag", "0"] for each in found]
    assert lags[:2] == [2.0, 3.0]
    assert {name for name, number in found[0] if number == "1"} == {"downspout_partition_end"} | {
        f"downspout_partition_{name}" for name in ("done", "uncommitted", "failed")
    }
    assert not [thread for thread in threading.enumerate() if thread.name == "downspout-metrics"]


def test_one_look_is_too_short_for_prometheus(capsys: pytest.CaptureFixture[str]) -> None:
    """The option needs --watch, and the error says so before Kafka is asked."""
    assert main(["lag", "shop", "--metrics-port", "0"]) == 2
    assert "--metrics-port goes with --watch" in capsys.readouterr().err
