"""``downspout kafka topics``."""

from __future__ import annotations

import pytest

from downspout.cli import kafka as command
from downspout.cli import main
from downspout.testing import FakeKafka


@pytest.mark.fake_only("a line that is printed; the counts of a broker are tested with the client")
def test_counts_agree_with_their_nouns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeKafka("topics") as kafka:
        kafka.ensure_topic("orders", 1)
        kafka.ensure_topic("clicks", 2)
        producer = kafka.producer()
        producer.send("orders", key=None, value=b"1")
        producer.flush()
        monkeypatch.setattr(kafka, "topics", lambda: {"clicks": 2, "orders": 1}, raising=False)
        monkeypatch.setattr(kafka, "topic_bytes", lambda: {"orders": 1_500}, raising=False)
        monkeypatch.setattr(command, "_cluster", lambda arguments: kafka)
        assert main(["kafka", "topics"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["clicks", "2", "partitions", "0", "offsets", "–"],
        ["orders", "1", "partition", "1", "offset", "1.5", "kB"],
    ]
