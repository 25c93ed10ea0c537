"""The how-to on object stores: its commands run, against a real S3 server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from demos.s3 import s3_server
from downspout.cli import main
from downspout.clock import SYSTEM_CLOCK
from downspout.testing import FakeKafka

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "write-to-s3.md"
TOPOLOGY = """
from streamparse import Topology
from bolts.parquet import ParquetBolt
from spouts.kafka import KafkaSpout

class Flights(Topology):
    spout = KafkaSpout.spec(topics=["flights"], fields=["origin", "value"], bootstrap="fake://howto")
    out = ParquetBolt.spec(inputs=[spout], directory="out", schema=["value:string"])
"""


@pytest.mark.fake_only("commands of a sink; workers on a real broker are in tests/broker/test_object_store_workers.py")
def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check, run with options by reference, audit and compact work as the page has them; no secret is shown."""
    text = re.sub(r"\\\n\s*", "", PAGE.read_text(encoding="utf-8"))
    (run,) = [line for line in text.splitlines() if line.startswith("downspout run") and "storage_options" in line]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flights.py").write_text(TOPOLOGY, encoding="utf-8")
    with FakeKafka("howto", SYSTEM_CLOCK) as kafka, s3_server() as url:
        kafka.create_topic("flights", partitions=1)
        for number in range(20):
            kafka.produce("flights", str(number).encode())
        monkeypatch.setenv("MINIO_KEY", "hush-key")
        monkeypatch.setenv("MINIO_SECRET", "hush-secret")
        words = run.replace("http://minio:9000", url).split()[1:]
        assert main(["check", *words[1:]]) == 0
        assert main([*words, "--until", "end"]) == 0
        monkeypatch.setenv("DOWNSPOUT_PARQUET_STORAGE_OPTIONS", words[-1].partition("options=")[2])
        assert main(["audit", "s3://bucket/flights", "--files-only", "--deep"]) == 0
        assert main(["compact", "s3://bucket/flights"]) == 0
        said = capsys.readouterr()
        assert "20" in said.out
        assert "hush" not in said.out + said.err
