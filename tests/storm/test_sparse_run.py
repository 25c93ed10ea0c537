"""Stock ``sparse run`` in a watched LocalCluster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from downspout.storm import groups
from downspout.storm.local import SLEEP_S_MAX
from tests.export.collector import collecting
from tests.storm.support import ROOT, Place, children
from tests.waiting import eventually

pytestmark = pytest.mark.storm

LINES = ["to be or not to be", "that is the question", "", "whether 'tis nobler in the mind"] * 50

FLIGHTS = 5_000

FAULTY = """\
import os

from streamparse import Bolt


class FaultyBolt(Bolt):
    outputs = []

    def initialize(self, conf, context):
        {fault}

    def process(self, tup):
        pass
"""
FAULTY_TOPOLOGY = """\
from streamparse import Topology

from bolts.faulty import FaultyBolt
from spouts.words import WordSpout


class Faulty(Topology):
    words = WordSpout.spec()
    faulty = FaultyBolt.spec(inputs=[words])
"""


@pytest.mark.sweep  # make test runs the flights in this way, in the next test
def test_word_count_runs_locally_with_stock_sparse(storm: Place) -> None:
    """`sparse run -n word_count` submits to no cluster, writes every word once, and Ctrl-C leaves nothing running."""
    place = storm
    place.cluster.ensure_topic("lines", 2)
    producer = place.cluster.producer()
    for number, line in enumerate(LINES):
        producer.send("lines", key=None, value=line.encode(), partition=number % 2)
    producer.flush()
    producer.close()
    output = place.run_to_the_end("word_count", "lines")
    assert "downspout: the local Storm is stopped" in output
    table = ds.dataset(place.project / "output" / "word_counts", format="parquet").to_table()
    counts: Counter[str] = Counter()
    for row in table.to_pylist():
        counts[row["word"]] += row["count"]
    assert counts == Counter(word for line in LINES for word in line.split())
    from downspout.audit.audit import audit

    report = audit(place.project / "output" / "word_counts", cluster=place.cluster)
    assert report.count("duplicate") == report.count("extra") == 0
    assert place.local_jvm() is None
    assert "word_count" not in storm.topologies()


@pytest.mark.sweep
@pytest.mark.slow
def test_flight_delays_writes_what_the_local_engine_writes(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sparse run -n flight_delays` reads the embedded Kafka: the same rows as `downspout run`, audited exact.

    The spout's spans reach the collector that the workers' variables name. Ctrl-C leaves nothing running.
    """
    place.publish_flights(FLIGHTS)
    # Other tests of the same Storm read the topic, too; a group stays until the last of those that were killed is out.
    eventually(lambda: not place.cluster.delete_groups(["flight_delays"]), every_s=0.5)
    shutil.rmtree(place.project / "output" / "flights", ignore_errors=True)
    shutil.rmtree(place.project / "output" / "route_delays", ignore_errors=True)
    with collecting() as (address, taken), monkeypatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        said = place.run_to_the_end("flight_delays", "flights", "-o", "kafka.trace_every=1")
        assert "downspout: the local Storm is stopped" in said
    assert {span.name for span in taken.spans} == {"process flights"}
    traced = sum(traced_records(span) for span in taken.spans)
    assert traced >= FLIGHTS // 2  # Storm kills the process: what was not sent yet is lost with it
    assert place.local_jvm() is None
    place.audit_flights(FLIGHTS)
    command = [sys.executable, "-m", "downspout", "run", str(ROOT / "topologies" / "flight_delays.py")]
    command += ["--until", "end", "--set", "kafka.group=locally"]
    done = subprocess.run(command, cwd=tmp_path, env=place.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, keys in {"flights": [], "route_delays": ["route", "hour"]}.items():
        assert rows(place.project / "output" / name, keys) == rows(tmp_path / "output" / name, keys)


def traced_records(span: Any) -> int:
    counts = [each.value.int_value for each in span.attributes if each.key == "messaging.batch.message_count"]
    return counts[0] if counts else 1


def rows(directory: Path, keys: list[str]) -> Counter[tuple[object, ...]]:
    """Return the rows of a directory, how often each; those of aggregates added up by their keys."""
    table = ds.dataset(directory, format="parquet", partitioning="hive").to_table()
    table = table.select(sorted(name for name in table.column_names if not name.startswith("_")))
    if keys:
        added = [name for name in table.column_names if name.startswith(("count", "sum"))]
        table = table.group_by(keys).aggregate([(name, "sum") for name in added])
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.sweep
def test_a_stock_quickstart_project_runs(place: Place, quickstart: Path, tmp_path: Path) -> None:
    """What `sparse quickstart` makes, which pins storm-core 1.1.0, runs in `downspout storm shell`, with a warning.

    Nothing is left of it in the folder for temporary files.
    """
    (temporary := tmp_path / "temporary").mkdir()
    environment = {**os.environ, "DOWNSPOUT_HOME": str(place.home), "TMPDIR": str(temporary)}
    output = ""
    for seconds in (15, 60, 180):  # more where a busy machine has not started all components by then
        if "counted [1,000] words" not in output:
            command = [sys.executable, "-m", "downspout", "storm", "shell", "--", "sparse", "run", "-t", str(seconds)]
            run = subprocess.run(command, cwd=quickstart, env=environment, capture_output=True, text=True)
            output = run.stdout + run.stderr
            assert run.returncode == 0, output
    assert "project.clj names org.apache.storm/storm-core 1.1.0" in output
    assert "counted [1,000] words" in output
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("victim", ["spouts.kafka.KafkaSpout", "bolts.parquet.ParquetBolt"])
def test_a_killed_component_ends_the_run_and_the_next_run_ends_in_the_same_rows(place: Place, victim: str) -> None:
    """After `kill -9` of a component's process the run fails and names it; run again, every row is there once."""
    topic = place.topology(place.publish(20_000))
    run = place.start_sparse("run", "-n", topic)
    while not list((place.project / "output" / topic).glob("*.parquet")):
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.1)
    jvm = place.local_jvm()
    assert jvm is not None
    os.kill(children(jvm, victim)[0], signal.SIGKILL)
    output, _ = run.communicate()
    assert not groups.members(jvm)
    assert run.returncode != 0
    name = "spout" if "Kafka" in victim else "rows"
    assert f"The process of component {name} has ended" in output
    assert place.local_jvm() is None
    place.run_to_the_end(topic, topic)
    assert place.audit(topic).exit_code == 0
    assert sorted(place.values(topic)) == sorted(f"value {number}" for number in range(20_000))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("import nowhere_to_be_found", ["Traceback (most recent call last):", "No module named 'nowhere_to_be_found'"]),
        pytest.param("os._exit(3)", ["component faulty", "exit code 3"], marks=pytest.mark.sweep),
    ],
)
def test_a_component_that_cannot_start_is_reported_in_python(
    place: Place, quickstart: Path, fault: str, words: list[str]
) -> None:
    """Users see Python's traceback, or the exit code, and no frame of Java's."""
    (quickstart / "src" / "bolts" / "faulty.py").write_text(FAULTY.format(fault=fault), encoding="utf-8")
    (quickstart / "topologies" / "faulty.py").write_text(FAULTY_TOPOLOGY, encoding="utf-8")
    code, output = place.sparse("run", "-n", "faulty", "-t", "240", folder=quickstart)
    assert code != 0
    assert all(word in output for word in words), output
    assert "\tat org.apache" not in output


def test_the_longest_run_fits_into_javas_milliseconds() -> None:
    """Without -t streamparse passes the largest long, which Storm multiplies by 1,000."""
    assert SLEEP_S_MAX * 1000 <= 2**63 - 1
