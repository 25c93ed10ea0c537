"""``downspout run --ui`` as a program on a real broker: two processes, poison, and a broker that goes and comes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster
from tests.waiting import eventually
from tests.web.running import FOR_EVER, SCRIPT, TOPIC, Running

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 600
WAIT_S = 120.0


@contextmanager
def program(folder: Path, bootstrap: str, *options: str, **config: object) -> Iterator[Running]:
    """Run the shop as a user does; end it in order."""
    settings = {"kafka.bootstrap": bootstrap, **config}
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "downspout", "run", "tests/web/running.py", "--ui", "0", *options, *given]
    log = folder / "log"
    with log.open("w") as file:
        run = subprocess.Popen(command, cwd=ROOT, stderr=file)
    try:
        yield Running(address_in(log, run))
    finally:
        run.send_signal(signal.SIGTERM)
        try:
            run.wait(WAIT_S)
        finally:
            run.kill()
            run.wait()


def address_in(log: Path, run: subprocess.Popen[bytes]) -> str:
    """Return the page's address, once the run has said it."""
    said = eventually(
        lambda: re.search(r"shown at (http\S+)", log.read_text()),
        WAIT_S,
        every_s=0.1,
        otherwise=log.read_text,
        alive=run,
    )
    return said.group(1)


def fill(cluster: KafkaCluster, values: list[str], partitions: int) -> None:
    cluster.ensure_topic(TOPIC, partitions, {})
    producer = cluster.producer(client={})
    for number, value in enumerate(values):
        producer.send(TOPIC, key=None, value=value.encode(), partition=number % partitions)
    producer.flush(60.0)
    producer.close()


@pytest.mark.sweep
def test_two_workers_are_one_run(tmp_path: Path) -> None:
    """Counters are those of both, each partition has its worker, and a poison record is named across the processes."""

    # On a busy machine one worker may have read all before the other joins, and then hands the poison record on.
    def is_shared(run: Any) -> bool:
        return {row["owner"] for row in run["partitions"]["rows"]} == {"worker 1", "worker 2"}

    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        cluster = KafkaCluster(kafka.bootstrap)
        fill(cluster, [SCRIPT, *(f"order {number}" for number in range(RECORDS))], 2)
        with program(tmp_path, kafka.bootstrap, "--workers", "2", **FOR_EVER) as made:
            run = made.until(
                lambda run: run["totals"]["completed"] >= RECORDS and bool(run["blocked"]) and is_shared(run)
            )
            busy = made.until(lambda run: all(each["cpu_percent"] is not None for each in run["workers"]))
    assert [each["state"] for each in busy["workers"]] == ["running", "running"]
    assert len({each["pid"] for each in busy["workers"]}) == 2
    assert run["windows"]["all"]["p50_ms"] > 0
    (blocked,) = run["blocked"]
    assert blocked["error"] == f"ValueError: no order: {SCRIPT}"
    errors = {each["name"]: each for each in run["components"]}
    totals = errors["check"]["totals"]
    assert totals["executed"] == totals["acked"] + totals["failed"] > RECORDS
    assert "Traceback" in errors["check"]["stack"]


@pytest.mark.sweep
def test_a_broker_that_goes_and_comes_is_seen(tmp_path: Path) -> None:
    """While no broker answers the page says so; afterwards the run goes on."""
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        fill(KafkaCluster(kafka.bootstrap), [f"order {number}" for number in range(RECORDS)], 1)
        with program(tmp_path, kafka.bootstrap) as made:
            made.until(lambda run: run["totals"]["completed"] == RECORDS)
            kafka.stop()
            made.until(lambda run: run["totals"]["disconnected"] == 1)
            kafka.start(progress=lambda line: None)
            made.until(lambda run: run["totals"]["disconnected"] == 0)
            fill(KafkaCluster(kafka.bootstrap), ["one more"], 1)
            made.until(lambda run: run["totals"]["completed"] == RECORDS + 1)
