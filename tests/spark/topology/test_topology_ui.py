"""The page of ``downspout spark run`` as a process, over a real broker."""

from __future__ import annotations

import re
import signal
import threading
from typing import Any

import pytest

from tests.spark.topology.scene import PATIENCE_S, Scene, lines_of, lines_until
from tests.web.running import Running

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]


def is_done(run: Any, records: int) -> bool:
    """Return whether the driver has added up so many, and Spark, which does so later, has reported them."""
    committed = sum(row["committed"] for row in run["partitions"]["rows"])
    return bool(run["totals"]["completed"] == committed == records)


@pytest.mark.sweep
def test_the_page_shows_batches_offsets_and_sinks(scene: Scene) -> None:
    scene.send(*lines_of(60))
    words = sum(len(line.split()) for line in scene.sent)
    driver = scene.start("--records-per-batch", "20", "--ui", "0")
    try:
        (address,) = re.findall(r"shown at (http\S+)", lines_until(driver, "shown at")[-1])
        threading.Thread(target=lambda: [None for _ in driver.stderr or ()], daemon=True).start()
        page = Running(address)
        run = page.until(lambda run: is_done(run, 60), wait_s=PATIENCE_S)
        graph = page.api("topology")
        scene.send(*lines_of(10, seed=1))
        later = page.until(lambda run: is_done(run, 70), wait_s=PATIENCE_S)
        rows = page.api("partitions?sort=partition")["rows"]
        driver.send_signal(signal.SIGINT)
        assert driver.wait(PATIENCE_S) == 128 + signal.SIGINT
    finally:
        driver.kill()
        driver.wait()
    assert (graph["topology"], graph["engine"]) == ("topology_case-Plain", "spark")
    assert [batch["records"] for batch in run["batches"]] == [20, 20, 20]
    assert all(batch["seconds"] > 0 and batch["records_per_s"] > 0 for batch in run["batches"])
    assert sum(batch["records"] for batch in later["batches"]) == 70
    assert [(row["number"], row["committed"], row["end"], row["lag"]) for row in rows] == [
        (0, 35, 35, 0),
        (1, 35, 35, 0),
    ]
    sinks = {each["component"]: each for each in run["sinks"]}
    assert sinks["words"]["rows"] == words
    counts = {each["name"]: each["totals"] for each in run["components"]}
    assert counts["split"]["executed"] == 60
    assert counts["words"]["executed"] == words
