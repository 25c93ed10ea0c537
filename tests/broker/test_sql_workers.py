"""`downspout run --workers 2` into one database, on a real broker; a worker is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka
from downspout.kafka import cluster_for
from tests.broker.test_workers import ROOT, WAIT_S
from tests.kafka.broker_stage import wait_until
from tests.sql.databases import TestDatabase, postgres_database, sqlite_database

pytestmark = pytest.mark.broker
PARTITIONS, EACH = 4, 4_000


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> TestDatabase:
    if request.param == "sqlite":
        return sqlite_database(tmp_path)
    return postgres_database(request.getfixturevalue("postgres"))


@pytest.mark.slow
def test_workers_share_a_table_and_a_killed_one_doubles_nothing(
    kafka_broker: EmbeddedKafka, database: TestDatabase, tmp_path: Path
) -> None:
    """Two workers write to one table and keep their offsets beside it; one is killed, and each row is there once."""
    topic = f"numbers-{uuid.uuid4().hex[:8]}"
    cluster = cluster_for(kafka_broker.bootstrap)
    cluster.ensure_topic(topic, PARTITIONS)
    producer = cluster.producer()
    for number in range(PARTITIONS * EACH):
        producer.send(topic, key=None, value=str(number).encode(), partition=number % PARTITIONS)
    producer.flush(60)
    producer.close()
    database.execute("CREATE TABLE doubles (number BIGINT NOT NULL)")
    settings = {
        "kafka.bootstrap": kafka_broker.bootstrap, "kafka.topics": topic, "kafka.group": topic,
        "kafka.commit_period_ms": 200, "kafka.offset_store": database.url, "sql.database": database.url,
    }  # fmt: skip
    if password := database.settings.get("sql.password"):
        settings |= {"sql.password": password, "kafka.offset_store_password": password}
    command = [sys.executable, "-m", "downspout", "run", "tests/broker/sql_topology.py", "--workers", "2"]
    command += ["--until", "end", *(f"--set={key}={value}" for key, value in settings.items())]
    environment = os.environ | {"DOWNSPOUT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}

    def rows() -> int:
        return int(database.execute("SELECT count(*) FROM doubles")[0][0])

    said = tmp_path / "log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_until(lambda: rows() > 0 or process.poll() is not None)
        pids = re.findall(r"worker \d+ runs as process (\d+)", said.read_text())
        with suppress(ProcessLookupError):  # it has come to the end already
            os.kill(int(pids[0]), signal.SIGKILL)
        code = process.wait(WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert code == 0, said.read_text()[-4000:]
    found = [number for (number,) in database.execute("SELECT number FROM doubles ORDER BY number")]
    assert found == [2 * number for number in range(PARTITIONS * EACH)]
    stored = database.execute("SELECT kafka_partition, next_offset FROM downspout_offsets ORDER BY 1")
    assert stored == [(number, EACH) for number in range(PARTITIONS)]
