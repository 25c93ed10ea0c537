"""Random small topologies on random lines: the sinks' rows are those of the local engine, however batches are cut."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streamparse import Grouping

from downspout.engine import Graph
from downspout.testing import FakeKafka, run_topology
from tests.spark import topology_bolts as b
from tests.spark.topology_support import InProcess, rows_in

pytestmark = pytest.mark.fake_only("the same on Spark and a broker is in test_topology_run.py")

TRIES = 8
"""More than there are failures on the longest way, each of which may fail a whole lot."""
WORDS = ["a", "b", "longer", "longest"]


@st.composite
def shapes(draw: st.DrawFn) -> list[tuple[str, str, list[int], int]]:
    """Return bolts behind the split: kind, grouping, which earlier ones they read, how many tasks."""
    shape = []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["tag", "count", "count", "lots"]))
        grouping = draw(st.sampled_from(["fields", "global"] if kind == "count" else ["shuffle", "fields"]))
        sources = draw(st.lists(st.integers(-1, number - 1), min_size=1, max_size=2, unique=True))
        shape.append((kind, grouping, sources, draw(st.integers(1, 3))))
    return shape


@st.composite
def texts(draw: st.DrawFn) -> list[str]:
    line = st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join)
    return draw(st.lists(line | st.just("poison"), min_size=1, max_size=8))


def built(
    shape: list[tuple[str, str, list[int], int]], out: Path, split_class: Any = b.Split, tag: Any = b.Tag
) -> Graph:
    spout = b.lines()
    split = split_class.spec(inputs=[spout])
    specs: dict[str, Any] = {"spout": spout, "split": split, "words": b.sink([split], out / "words", b.WORD)}
    made = {-1: split}
    for number, (kind, grouping, sources, par) in enumerate(shape):
        cls = {"tag": tag, "count": b.Count, "lots": b.Lots}[kind]
        how = {"fields": Grouping.fields("word"), "global": Grouping.GLOBAL, "shuffle": Grouping.SHUFFLE}[grouping]
        spec = cls.spec(inputs={made[source]: how for source in sources}, par=par)
        made[number] = specs[f"bolt{number}"] = spec
        specs[f"sink{number}"] = b.sink([spec], out / f"sink{number}", b.WORD if kind != "count" else b.COUNT)
    return b.graph_of("Random", **specs)


def tables(shape: list[tuple[str, str, list[int], int]], out: Path) -> dict[str, Counter[Any]]:
    """Return each sink's rows; the sizes of lots depend on how they were cut, and are no part of them."""
    found = {"words": Counter(rows_in(out / "words", "word"))}
    for number, (kind, *_) in enumerate(shape):
        columns = ("word", "n") if kind == "count" else ("word",)
        found[f"sink{number}"] = Counter(rows_in(out / f"sink{number}", *columns))
    return found


@settings(
    max_examples=10,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@pytest.mark.slow
@pytest.mark.parametrize("emit", ["record", "chunk"])
@given(shape=shapes(), lines=texts(), records_max=st.integers(1, 6), seed=st.integers(0, 1000))
def test_the_tables_are_the_local_engine_s(
    shape: list[tuple[str, str, list[int], int]], lines: list[str], records_max: int, seed: int, emit: str
) -> None:
    """Whatever reads whatever, wherever batches end, and though lines and words fail once, rows and letters are one.

    So they are where records go as chunks on Spark, and where BatchingBolts tie records together. The local engine's
    are those of a run by record without failures: what a failed try has emitted, its bolts have counted.
    """
    b.failed_once.clear()
    settings: dict[str, Any] = {"kafka.breaker_ratio": 0, "kafka.retries_max": TRIES, "kafka.retry_delay_ms": 0}
    with tempfile.TemporaryDirectory() as folder, FakeKafka("random") as kafka:
        kafka.create_topic("lines", 2)
        for line in lines:
            kafka.produce("lines", line.encode())
        local = built(shape, Path(folder) / "local")
        run_topology(local, config={"kafka.bootstrap": kafka.bootstrap, **settings}, seed=seed)
        settings["kafka.emit"] = emit
        query = InProcess(
            built(shape, Path(folder) / "spark", b.FirstTimeLucky, b.UnluckyTag), kafka, settings, seed=seed
        )
        letters = [record.value for record in query.letters()]
        query.drain(records_max)
        assert tables(shape, Path(folder) / "spark") == tables(shape, Path(folder) / "local")
        assert sorted(record.value for record in query.letters()) == sorted([*letters, *letters])
