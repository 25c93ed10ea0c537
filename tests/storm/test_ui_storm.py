"""``downspout ui storm`` on a real Storm: the page shows what ``downspout storm stats`` says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.storm.support import Place
from tests.web.running import Running
from tests.web.test_ui_broker import address_in

pytestmark = [pytest.mark.storm, pytest.mark.slow]

RECORDS = 3_000


def downspout(storm: Place, *arguments: str) -> list[str]:
    """Return a command about the node at this place."""
    return [sys.executable, "-m", "downspout", *arguments, "--dir", str(storm.node.directory)]


@contextmanager
def shown(storm: Place, name: str, log: Path) -> Iterator[Running]:
    """Show a topology as a user does who knows nimbus's address alone; end it by Ctrl-C."""
    nimbus = "{}:{}".format(*storm.node.address)
    with log.open("w") as file:
        command = [sys.executable, "-m", "downspout", "ui", "storm", name, "--port", "0", "--nimbus", nimbus]
        page = subprocess.Popen(command, cwd=storm.project, env=storm.environment(), stderr=file)
    try:
        yield Running(address_in(log, page))
    finally:
        page.send_signal(signal.SIGINT)
        try:
            assert page.wait(60) == 0, log.read_text()
        finally:
            page.kill()
            page.wait()


def stats(storm: Place, name: str) -> Any:
    """Return what ``downspout storm stats --json`` prints of a topology."""
    command = downspout(storm, "storm", "stats", name, "--json")
    done = subprocess.run(
        command, cwd=storm.project, env=storm.environment(), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)[0]


@pytest.mark.sweep
def test_the_page_shows_what_storm_stats_says(storm: Place, tmp_path: Path) -> None:
    """Graph, counters, times, lag, partitions with their owner: once all is processed both have the same figures."""
    topic = storm.publish(RECORDS)
    name = storm.topology(topic)
    code, output = storm.sparse("submit", "-n", name)
    assert code == 0, output
    with shown(storm, name, tmp_path / "log") as page:
        storm.wait_for(name, 0)
        graph = page.api("topology")
        run = page.until(lambda run: run["totals"]["lag"] == 0 and run["totals"]["completed"] == RECORDS)
        known = stats(storm, name)
        rows = page.api("partitions?sort=partition")["rows"]
        # Ticks are tuples too, so a bolt's counts go on.
        bolt = known["components"][1]
        later = page.until(lambda run: run["components"][1]["totals"]["executed"] >= bolt["executed"])
    assert [(each["name"], each["class"], each["tasks"]) for each in graph["components"]] == [
        ("spout", "spouts.kafka.KafkaSpout", 1),
        ("rows", "bolts.parquet.ParquetBolt", 2),
    ]
    assert [(each["source"], each["target"]) for each in graph["edges"]] == [("spout", "rows")]
    assert run["state"] == "active"
    spout, rows_bolt = run["components"]
    assert spout["totals"] | {"emitted": RECORDS, "acked": RECORDS, "failed": 0} == spout["totals"]
    assert spout["windows"]["all"]["complete_ms"] == pytest.approx(known["components"][0]["complete_ms"])
    for counter in ("executed", "acked"):
        ahead = later["components"][1]["totals"][counter]
        assert RECORDS <= rows_bolt["totals"][counter] <= bolt[counter] <= ahead
    window = later["components"][1]["windows"]["10m"]
    assert window["process_ms"] > window["execute_ms"] > 0
    assert 0 <= window["capacity"] < 1
    (lag,) = known["lag"]
    shown_rows = [(row["number"], row["committed"], row["end"], row["lag"], row["owner"]) for row in rows]
    assert shown_rows == [
        (row["partition"], row["committed"], row["end"], row["lag"], f"task {row['task']}") for row in lag["partitions"]
    ]
    assert sum(row["committed"] for row in rows) == RECORDS
    code, output = storm.sparse("kill", "-n", name, "--wait", "0")
    assert code == 0, output
