"""A component runs for a tuple of a running topology, and else only when somebody asks: its calls are counted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from downspout.cli import main
from downspout.testing import FakeKafka
from tests.sink.support import rows_of

pytestmark = pytest.mark.fake_only("the calls of a bolt are the question; Kafka is a detail of it")

TOPOLOGY = """
from pathlib import Path

from streamparse import Topology
from bolts.kafka import KafkaBolt
from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

class Charge(Bolt):
    outputs = ["origin", "value"]

    def process(self, tup):
        with Path("calls").open("a") as file:
            file.write(tup.values.value + chr(10))
        if tup.values.value != "free":
            self.emit([*tup.values])

class Notify(Bolt):
    outputs = []

    def process(self, tup):
        with Path("sent").open("a") as file:
            file.write(tup.values.value + chr(10))

class Shop(Topology):
    orders = KafkaSpout.spec(topics=["orders"], fields=["origin", "value"])
    charge = Charge.spec(inputs=[orders])
    rows = ParquetBolt.spec(inputs=[charge], directory="rows", schema=["value:string"])
    notify = Notify.spec(inputs=[orders])
    copies = KafkaBolt.spec(inputs=[orders], topic="copies", fields={"message": "value"})
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKafka]:
    """A topology whose bolts have side effects, one of them before a sink and one without."""
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text(TOPOLOGY, encoding="utf-8")
    with FakeKafka("unasked") as kafka:
        kafka.create_topic("orders")
        kafka.create_topic("copies")
        produce(kafka, 20)
        monkeypatch.setenv("DOWNSPOUT_KAFKA_BOOTSTRAP", kafka.bootstrap)
        yield kafka


def produce(kafka: FakeKafka, count: int) -> None:
    for number in range(count):
        kafka.produce("orders", b"free" if number % 4 == 0 else b"paid", partition=0)


def calls() -> tuple[int, int]:
    """Return how often each of the two bolts was called."""
    charged, sent = (len(Path(name).read_text(encoding="utf-8").splitlines()) for name in ("calls", "sent"))
    return charged, sent


def run() -> int:
    """Run the topology to the end of its topic, from the command line."""
    return main(["run", "shop.py", "--until", "end", "--quiet"])


def test_a_bolt_is_called_once_for_each_record(shop: FakeKafka) -> None:
    """Three starts, two audits, a check and a compaction call no bolt for a record that was processed."""
    access = ("--bootstrap", shop.bootstrap)
    assert run() == 0
    assert calls() == (20, 20)
    assert run() == 0
    assert main(["audit", "rows", *access]) == 10  # which records are to have a row only the bolts know
    assert main(["check", "shop.py"]) == 0
    assert main(["compact", "rows"]) == 0
    produce(shop, 4)
    assert run() == 0
    assert main(["audit", "rows", "--deep", *access]) == 10
    assert calls() == (24, 24)
    assert len(rows_of(Path("rows"))) == 18


def test_an_audit_that_is_asked_to_runs_the_bolts_before_the_sink_alone(shop: FakeKafka) -> None:
    """With ``--topology`` they run again, as the option's help says; a bolt that leads to no row of it does not."""
    assert run() == 0
    assert main(["audit", "rows", "--topology", "shop.py", "--bootstrap", shop.bootstrap]) == 0
    charged, sent = calls()
    assert (charged > 20, sent) == (True, 20)
    assert len(shop.records("copies")) == 20


@pytest.mark.parametrize("lost", ["directory", "commits"])
def test_a_start_that_finds_something_amiss_calls_no_bolt(shop: FakeKafka, lost: str) -> None:
    """Where rows or commits are gone a warning says so; it asks no bolt what the rows would have been."""
    assert run() == 0
    if lost == "directory":
        shutil.rmtree("rows")
        assert run() == 0
        assert calls() == (20, 20)
    else:
        shop.delete_groups(["shop"])
        assert run() == 0
        assert calls() == (40, 40)  # read again, since the group knows nothing; the sink has its rows
        assert len(rows_of(Path("rows"))) == 15
