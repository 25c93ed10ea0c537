"""``downspout compare`` with a real Storm as one of the engines."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import pytest
from kafka.admin import KafkaAdminClient

from tests.storm.support import Place

pytestmark = pytest.mark.storm

FLIGHTS = 700


@pytest.mark.sweep
def test_storm_equals_the_local_engine(storm: Place) -> None:
    """Bad records among the flights and all, Storm's tables equal the local engine's; it stops at the frozen ends."""
    storm.publish_flights(FLIGHTS)
    topic = f"odd-{uuid.uuid4().hex[:8]}"
    storm.cluster.ensure_topic(topic, 2)
    producer = storm.cluster.producer()
    good = b'{"origin": "EWR", "dest": "IAH", "hour": 5, "dep_delay": %d}'
    for number in range(40):
        producer.send(
            topic, key=None, value=[good % number, b"{", None, b'{"hour": 300}'][number % 4], partition=number % 2
        )
    producer.flush()
    producer.close()
    before = (
        {path.name for path in (storm.project / "output").rglob("*")} if (storm.project / "output").exists() else set()
    )
    done = subprocess.run(
        [sys.executable, "-m", "downspout", "compare", "topologies/flight_delays.py", "--engines", "local,storm",
         "--set", f"spout:kafka.topics=flights,{topic}", "--set", "kafka.breaker_ratio=0",
         "--set", "kafka.retries_max=1", "--json"],
        cwd=storm.project, env=storm.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "equal on local, storm"
    assert {table["name"]: table["rows"]["storm"] for table in report["tables"]}["flights"] == FLIGHTS + 10
    after = (
        {path.name for path in (storm.project / "output").rglob("*")} if (storm.project / "output").exists() else set()
    )
    assert after == before
    assert [name for name in storm.topologies() if name.startswith("compare")] == []
    admin = KafkaAdminClient(bootstrap_servers=storm.cluster.bootstrap)
    try:
        assert "compare-" not in json.dumps(admin.list_groups(), default=str)
    finally:
        admin.close()
    assert not [name for name in storm.cluster.topics() if name.startswith("compare-")]


@pytest.mark.sweep
def test_states_equal_those_of_the_local_engine(storm: Place) -> None:
    """What a StateBolt keeps of batches, with a reducer of the user's, is the same on Storm; the run ends by itself."""
    storm.publish_flights(FLIGHTS)
    done = subprocess.run(
        [sys.executable, "-m", "downspout", "compare", "topologies/batch_flights.py", "--engines", "local,storm",
         "--json"],
        cwd=storm.project, env=storm.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "equal on local, storm"
    (table,) = report["tables"]
    assert (table["name"], table["rows"]["local"]) == ("carriers", table["rows"]["storm"])
    assert table["rows"]["storm"] > 10
    assert not (storm.project / "carriers.db").exists()
