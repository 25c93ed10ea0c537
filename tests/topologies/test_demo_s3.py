"""The demo into a bucket, with few flights: killed, disturbed, and read by four readers."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from demos import to_s3
from demos.s3 import s3_server
from demos.screen import Screen
from demos.to_s3 import S3Demo, Weather
from tests.sink.cloud_support import s3_client

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS, KILLS = 3_000, 2
FRAME = pd.DataFrame({
    "carrier": ["UA", "UA", "B6"], "distance": [1, 2, 3], "dep_delay": [None, 4.0, -5.0],
    "arr_delay": [7.0, None, None],
})  # fmt: skip


@pytest.mark.sweep
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_is_exact(tmp_path: Path) -> None:
    """Killed twice, with 503 and lost answers, both directories are exact and four readers find all flights."""
    environment = {**os.environ, "DOWNSPOUT_HOME": str(tmp_path / "home"), "COLUMNS": "200"}
    command = [sys.executable, "-m", "demos.drill", "s3", "--flights", str(FLIGHTS), "--kills", str(KILLS)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"✓ {KILLS} kills, " in done.stdout
    assert "exact: 3,000 offsets are in the files, each exactly once" in done.stdout
    assert "exact: 3,000 offsets are added up, each exactly once" in done.stdout
    for reader in to_s3.READERS:
        assert f"✓ {reader}: 3,000 flights; sums equal the package's" in done.stdout


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> S3Demo:
    monkeypatch.delitem(to_s3.READERS, "PySpark (s3a)")
    return S3Demo(FLIGHTS, KILLS, Screen(Console(file=io.StringIO(), width=200)))


@pytest.mark.parametrize("spoilt", ["not at all", "twice", "missing", "value"])
def test_a_reader_finds_what_is_wrong(demo: S3Demo, spoilt: str) -> None:
    """Each reader finds equal sums, and a row twice, a missing row and another value: an audit can fail."""
    rows = FRAME.assign(_partition=pa.array([0, 0, 1], pa.int32()).to_pandas(), _offset=[0, 1, 0])
    if spoilt == "twice":
        rows = pd.concat([rows, rows[:1]])
    if spoilt == "missing":
        rows = rows[1:]
    if spoilt == "value":
        rows["distance"] += 1
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pandas(rows.convert_dtypes(), preserve_index=False), sink)
    with s3_server() as url:
        s3_client(url).put("flights/month=1/part.parquet", bytes(sink.getvalue()))
        found = list(demo.read(url, FRAME))
    assert [finding.right for finding in found] == [spoilt == "not at all"] * 3, found


def test_the_weather_is_as_bad_as_it_says() -> None:
    """Of many requests one in forty is answered by 503 and of as many the answer is lost; puts are counted."""
    weather = Weather(7)
    fates: list[Any] = [weather("PUT /x HTTP/1.1") for _ in range(4_000)] + [weather("GET /x HTTP/1.1")]
    assert weather.puts == 4_000
    for fate in ("slow", "lose"):
        assert 70 < fates.count(fate) < 130
        assert weather.done[fate] == fates.count(fate)
