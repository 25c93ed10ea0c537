"""SqlBolt on Storm, behind a stock streamparse bolt: each row is in the table once, whatever is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.storm.support import Place, children

pytestmark = [pytest.mark.storm, pytest.mark.slow]

RECORDS = 8_000
KILLED = ("bolts.sql.SqlBolt", "spouts.kafka.KafkaSpout")
TOPOLOGY = """\
from streamparse import Topology

from bolts.sql import SqlBolt
from spouts.kafka import KafkaSpout
from tests.storm.writing_bolts import ShoutWithOrigin


class Stored(Topology):
    config = {{"topology.max.spout.pending": 500, "topology.message.timeout.secs": 10}}
    spout = KafkaSpout.spec(
        topics=["{topic}"], fields=["origin", "value"], commit_period_ms=500, emits_per_next_max=50,
        offset_store="{url}",
    )
    shout = ShoutWithOrigin.spec(inputs=[spout], par=2)
    store = SqlBolt.spec(inputs=[shout], par=2, database="{url}", table="shouts", flush_age_s=0.5)
"""


@pytest.mark.sweep
def test_rows_survive_the_death_of_any_component(storm: Place, tmp_path: Path) -> None:
    """Two sinks and a spout with its offsets in the same file: however often one is killed, each row is there once."""
    file = tmp_path / "storm.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL").close()
        connection.execute("CREATE TABLE shouts (message TEXT NOT NULL)")
    topic = storm.publish(RECORDS)
    text = TOPOLOGY.format(topic=topic, url=f"sqlite:///{file}")
    (storm.project / "topologies" / f"{topic}.py").write_text(text, encoding="utf-8")
    code, output = storm.sparse("submit", "-n", topic)
    assert code == 0, output
    for number, name in enumerate(KILLED):
        storm.wait_for(topic, RECORDS - RECORDS // (len(KILLED) + 2) * (number + 1))
        if pids := children(storm.workers_group(), name):
            os.kill(pids[0], signal.SIGKILL)
    storm.wait_for(topic, 0)
    with closing(sqlite3.connect(file)) as connection:
        rows = Counter(message for (message,) in connection.execute("SELECT message FROM shouts"))
        stored = connection.execute("SELECT sum(next_offset) FROM downspout_offsets").fetchone()
    assert rows == {f"VALUE {number}": 1 for number in range(RECORDS)}
    assert stored == (RECORDS,)
    code, output = storm.sparse("kill", "-n", topic, "--wait", "0")
    assert code == 0, output
