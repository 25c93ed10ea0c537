"""`downspout run --workers 2` into an S3 server on a real broker: killed workers, lost answers and 503 SlowDown."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from demos.s3 import KEYS, FaultProxy
from downspout.audit.audit import audit
from downspout.broker import EmbeddedKafka
from downspout.sink import ObjectStore, read_table
from tests.broker.test_workers import EACH, EXACT, PARTITIONS, Scene
from tests.sink.cloud_support import out, rows_in_sight, s3_client, server_of

pytestmark = pytest.mark.broker


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """Return a proxy before an S3 server; of 17 requests one loses its answer and another is told to slow down."""
    with server_of("s3proxy") as url, FaultProxy(url, lambda line: None) as proxy:
        proxy.fault = lambda line: {5: "lose", 11: "slow"}.get(len(proxy.requests) % 17)
        yield proxy


@pytest.mark.sweep
def test_killed_workers_and_a_store_with_faults_lose_and_double_nothing(
    kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path, processes: list[subprocess.Popen[bytes]],
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Two workers are killed with rows in flight, and a part of all requests fails: in the end the audit is exact."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": proxy.url}.items():
        monkeypatch.setenv(name, value)
    scene = Scene(kafka_broker, topic_name, tmp_path, processes)
    scene.output = directory = out(topic_name)
    scene.after(500)
    run = scene.start("--until", "end", "--set", "parquet.flush_rows=200")
    killed: list[int] = []
    for _ in range(2):
        scene.wait(lambda: scene.at_the_gate() - set(killed))
        killed.append(min(scene.at_the_gate() - set(killed)))
        os.kill(killed[-1], signal.SIGKILL)
    (scene.gate / "open").touch()
    result = scene.finish(run)
    assert result["exit_code"] == 0, scene.said
    assert sum(worker["restarts"] for worker in result["workers"]) == 2
    assert {line.partition(" ")[0] for line in proxy.injected} == {"lose", "slow"}
    assert scene.audit() == EXACT
    assert audit(directory, deep=True).exit_code == 0
    assert read_table(directory).num_rows == PARTITIONS * EACH
    proxy.fault = lambda line: None
    assert len(rows_in_sight(ObjectStore(s3_client(proxy.url)), directory)) == PARTITIONS * EACH
