"""Batches on Storm, through multilang: each word is counted once, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.storm.support import STALLED_S_MAX, Place, children

pytestmark = [pytest.mark.storm, pytest.mark.slow]

RECORDS = 3_000
KILLED = ("spouts.batches.KafkaBatchBolt", "bolts.state.StateBolt", "spouts.batches.BatchCoordinator")
TOPOLOGY = """\
from streamparse import Grouping, Topology

from bolts.state import StateBolt
from spouts.batches import KafkaBatches
from tests.batches.counting import Split


class Counted(Topology):
    config = {{"topology.message.timeout.secs": 10, "topology.max.spout.pending": 20}}
    coordinator, lines = KafkaBatches.spec(
        topics=["{topic}"], fields=["value"], par=2, records_max=200, emit_interval_ms=100, max_active=2,
        store="sqlite:///{file}", kind="{kind}",
    )
    split = Split.spec(inputs=[lines], par=2)
    counts = StateBolt.spec(
        coordinator=coordinator, inputs={{split: Grouping.fields("word")}}, par=2, store="sqlite:///{file}",
        key=["word"], update="count", kind="{kind}",
    )
"""


def counts_in(file: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    if file.exists():
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(file)) as connection:
            for key, value in connection.execute("SELECT key, value FROM downspout_state"):
                found[json.loads(key)[0]] = json.loads(value)[1] or 0
    return found


def wait_for(file: Path, words: int) -> None:
    """Wait until so many words are counted; as long as it goes on, and then a while."""
    best, moved_at = -1, time.monotonic()
    while (now := counts_in(file).total()) < words:
        if now > best:
            best, moved_at = now, time.monotonic()
        assert time.monotonic() - moved_at < STALLED_S_MAX, f"stays at {now} words of {words}"
        time.sleep(0.3)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["opaque", pytest.param("transactional", marks=pytest.mark.sweep)])
def test_counts_survive_the_death_of_any_component(storm: Place, tmp_path: Path, kind: str) -> None:
    """Coordinator, an emitter and a state task are killed while batches are active: the counts are exact."""
    file, topic = tmp_path / "batches.db", storm.publish(RECORDS)
    text = TOPOLOGY.format(topic=topic, file=file, kind=kind)
    (storm.project / "topologies" / f"{topic}.py").write_text(text, encoding="utf-8")
    code, output = storm.sparse("submit", "-n", topic)
    assert code == 0, output
    words = 2 * RECORDS
    for number, name in enumerate(KILLED):
        wait_for(file, words // (len(KILLED) + 1) * (number + 1) - words // 8)
        if pids := children(storm.workers_group(), name):
            os.kill(pids[0], signal.SIGKILL)
    wait_for(file, words)
    code, output = storm.sparse("kill", "-n", topic, "--wait", "0")
    assert code == 0, output
    assert counts_in(file) == Counter({"value": RECORDS, **{str(number): 1 for number in range(RECORDS)}})
