"""The example topologies with every tuple sent over the wire and through Storm's Java, beside the local engine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset as ds
import pytest

from demos.audit import read_rows
from demos.flights_data import Flights, load_flights, publish
from downspout.engine import Engine, Task
from downspout.ledger import Origin
from downspout.run.runner import run
from downspout.wire import Encoder, as_origin
from tests.spout.spout_driver import Kafka
from tests.topologies.slices import run_flight_delays
from tests.wire.storm_pipe import received, through_java

TEXT = ["to be or not to be", "that is the question", "", "\0nul \U0001f600 \u2028 / \x7f", "Ünïcödé Ünïcödé"]


class Wire:
    """Lets every emit of every component go over the wire; counts them by component."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: Counter[str] = Counter()
        self._encoder = Encoder()
        stock = Engine.__init__

        def wired(engine: Engine, *args: Any, **kwargs: Any) -> None:
            stock(engine, *args, **kwargs)
            engine.world.created = self._attach

        monkeypatch.setattr(Engine, "__init__", wired)

    def _attach(self, task: Task) -> None:
        local = task.instance.emit

        def emit(values: Any, *args: Any, **kwargs: Any) -> Any:
            self.sent[task.name] += 1
            fields = task.outlets[kwargs.get("stream")].kind._fields
            return local(self.over(list(values), fields), *args, **kwargs)

        task.instance.emit = emit

    def over(self, values: list[Any], fields: tuple[str, ...]) -> list[Any]:
        """Return values as they are on the other side of the pipe."""
        data = self._encoder.encode({"command": "emit", "tuple": values})
        got: list[Any] = received(through_java(data))["tuple"]
        return [as_origin(value) if name == "origin" else value for name, value in zip(fields, got, strict=True)]


@pytest.mark.slow
def test_flight_delays_makes_the_same_rows(bare_kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flights and the added-up delays are the same, value by value, on Storm's wire and in the local engine."""
    publish(bare_kafka, Flights(load_flights(1_000)))
    found = {}
    for place in ("local", "wire"):
        wire = Wire(monkeypatch) if place == "wire" else None
        # What is compared are records on the wire: by default this topology sends chunks.
        run_flight_delays(bare_kafka, tmp_path / place, group=place, run__until="end", kafka__emit="record")
        rows = read_rows(tmp_path / place / "flights").sort_values(["_partition", "_offset"]).reset_index(drop=True)
        delays = ds.dataset(tmp_path / place / "route_delays", format="parquet").to_table().to_pandas()
        found[place] = rows, delays.groupby(["route", "hour"]).sum().reset_index()
    assert wire is not None
    assert wire.sent == {"spout": 1_000, "parse": 1_000, "enrich": 1_000}
    for here, there in zip(found["local"], found["wire"], strict=True):
        assert len(here)
        pd.testing.assert_frame_equal(here, there, check_exact=True)


def test_word_count_makes_the_same_counts(bare_kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of all kinds are counted the same on Storm's wire and in the local engine."""
    bare_kafka.create_topic("lines", 2)
    for number, line in enumerate(TEXT * 20):
        bare_kafka.produce("lines", line.encode(), partition=number % 2)
    found = {}
    for place in ("local", "wire"):
        wire = Wire(monkeypatch) if place == "wire" else None
        run(
            "topologies.word_count:WordCount",
            overrides=[f"word_counts:parquet.directory={tmp_path / place}"],
            options={
                "kafka.bootstrap": bare_kafka.bootstrap, "kafka.group": place, "run.until": "end",
                "kafka.emit": "record",  # what is compared are records on the wire
            },
        )  # fmt: skip
        counts: Counter[str] = Counter()
        for row in ds.dataset(tmp_path / place, format="parquet").to_table().to_pylist():
            counts[row["word"]] += row["count"]
        found[place] = counts
    assert wire is not None
    assert wire.sent["split"] == found["wire"].total()
    assert found["wire"] == found["local"] == Counter(word for line in TEXT * 20 for word in line.split())


def test_identities_of_words_stay_origins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bolt behind the wire gets an Origin, so what it makes of it is an identity as good as the local one."""
    wire = Wire(monkeypatch)
    over = wire.over([Origin("lines", "", 0, 2**53 + 1).child("split", 3), "word"], ("origin", "word"))
    assert over == [Origin("lines", "", 0, 2**53 + 1, "split.3"), "word"]
    assert type(over[0]) is Origin
