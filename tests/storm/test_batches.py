"""Batches on Storm, by stock ``sparse submit``: counts are exact, whatever is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest

from downspout.batches.backends.sql_state import read_state
from tests.storm.support import STALLED_S_MAX, Place, children

pytestmark = [pytest.mark.storm, pytest.mark.slow]

RECORDS = 3_000
KILLED = ("bolts.state.StateBolt", "spouts.batches.KafkaBatchBolt", "spouts.batches.BatchCoordinator")
TOPOLOGY = """\
from streamparse import Grouping, Topology

from bolts.state import StateBolt
from spouts.batches import KafkaBatches
from tests.storm.writing_bolts import Digits


class Counted(Topology):
    config = {{"topology.message.timeout.secs": 10}}
    coordinator, lines = KafkaBatches.spec(
        topics=["{topic}"], fields=["value"], kind="{kind}", records_max=200, emit_interval_ms=50, max_active=2, par=2,
        store="{url}",
    )
    digits = Digits.spec(inputs=[lines])
    counts = StateBolt.spec(
        coordinator=coordinator, inputs={{digits: Grouping.fields("digit")}}, par=2, store="{url}", kind="{kind}",
        key="digit", update="count",
    )
"""


def counted(url: str) -> Counter[str]:
    """Return what is stored by now."""
    with suppress(Exception):
        return Counter({key[0]: value for key, value in read_state(url, "counts").items()})
    return Counter()


def wait_for(url: str, count: int) -> None:
    """Wait until so many digits are counted; the time limit begins anew with each change."""
    last, until = -1, time.monotonic() + STALLED_S_MAX
    while (now := counted(url).total()) < count:
        if now != last:
            last, until = now, time.monotonic() + STALLED_S_MAX
        assert time.monotonic() < until, f"{now} of {count} are counted, and nothing moves"
        time.sleep(0.2)


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_counts_survive_the_death_of_any_component(storm: Place, tmp_path: Path, kind: str) -> None:
    """A state task, an emitter and the coordinator are killed while batches are under way: each digit counts once."""
    url = f"sqlite:///{tmp_path}/storm.db"
    topic = storm.publish(RECORDS)
    text = TOPOLOGY.format(topic=topic, url=url, kind=kind)
    (storm.project / "topologies" / f"{topic}.py").write_text(text, encoding="utf-8")
    code, output = storm.sparse("submit", "-n", topic)
    assert code == 0, output
    wanted = Counter(digit for number in range(RECORDS) for digit in str(number))
    for number, name in enumerate(KILLED, 1):
        wait_for(url, wanted.total() * number // (len(KILLED) + 2))
        if pids := children(storm.workers_group(), name):
            os.kill(pids[0], signal.SIGKILL)
    wait_for(url, wanted.total())
    time.sleep(2.0)  # what would count twice has had its time
    assert counted(url) == wanted
    with closing(sqlite3.connect(tmp_path / "storm.db")) as connection:
        assert connection.execute("SELECT current_txid > 10 FROM downspout_batches").fetchone() == (1,)
    code, output = storm.sparse("kill", "-n", topic, "--wait", "0")
    assert code == 0, output
