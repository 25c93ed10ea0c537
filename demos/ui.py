"""`make ui-demo`: the main job at a constant rate with some poison, and its web page, until Ctrl-C.

python -m demos.ui --rate 2000 --poison 5000 --port 8650

A broker of its own, and all files, are in a temporary folder, which is deleted at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from demos.constant_rate import Publisher
from demos.flights_data import PARTITIONS, TOPIC, TOPIC_CONFIG
from downspout.broker.embedded import EmbeddedKafka
from downspout.kafka.client import KafkaCluster
from downspout.system import jars

TOPOLOGY = "topologies/flight_delays.py"
SETTINGS = {
    # Slow retries, so that a failed record is visible while it waits: by default that takes a second or two.
    "kafka.retries_max": 4,
    "kafka.retry_delay_ms": 1_000,
}


def command(folder: Path, bootstrap: str, address: str, workers: int) -> list[str]:
    """Return the run's command."""
    outputs = {f"{name}:parquet.directory": folder / name for name in ("flights", "route_delays")}
    settings = {"kafka.bootstrap": bootstrap, "kafka.group": "ui-demo", **SETTINGS, **outputs}
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    many = ["--workers", str(workers)] if workers > 1 else []
    return [sys.executable, "-m", "downspout", "run", TOPOLOGY, "--ui", address, *many, *given]


def main(arguments: Sequence[str] | None = None) -> int:
    """Start all, wait for the run's end, stop all; return the run's exit code, 0 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m demos.ui", description=__doc__)
    parser.add_argument("--rate", type=float, default=2_000, help="flights per second (2,000)")
    parser.add_argument("--poison", type=int, default=5_000, help="one of that many records is poison (5,000; 0: none)")
    parser.add_argument("--port", default="", help="[HOST:]PORT of the page (127.0.0.1:8650)")
    parser.add_argument("--workers", type=int, default=1, help="processes (1)")
    given = parser.parse_args(arguments)
    jars.resolve("kafka", progress=lambda line: print(line, file=sys.stderr))
    folder = Path(tempfile.mkdtemp(prefix="downspout-ui-"))
    try:
        with EmbeddedKafka(folder / "kafka") as kafka:
            cluster = KafkaCluster(kafka.bootstrap)
            cluster.ensure_topic(TOPIC, PARTITIONS, TOPIC_CONFIG)
            publisher = Publisher(cluster, given.rate, poison_every=given.poison or None)
            publisher.start()
            try:
                return _run(command(folder, kafka.bootstrap, given.port, given.workers))
            finally:
                publisher.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(line: list[str]) -> int:
    """Run until it ends. Ctrl-C reaches the run too, and lets it drain; SIGTERM is handed on."""
    run = subprocess.Popen(line)
    signal.signal(signal.SIGTERM, lambda number, frame: run.send_signal(number))
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            code = run.wait()
            return 0 if code in (130, 143) else code


if __name__ == "__main__":
    sys.exit(main())
