"""The how-to on parsers: its programs and commands for schema registries run, on a real broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka
from downspout.cli import main
from downspout.sink import read_table
from downspout.testing import SchemaRegistry

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "parsing.md"


@pytest.mark.broker
@pytest.mark.parametrize("emit", ["record", "chunk"])
def test_the_page_runs_though_the_registry_is_away_at_first(
    tmp_path: Path, kafka_broker: EmbeddedKafka, topic_name: str, monkeypatch: pytest.MonkeyPatch, emit: str
) -> None:
    """The page's producer, topology and commands work; values wait while the registry is away, and none is lost."""
    text = PAGE.read_text(encoding="utf-8")
    programs = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL))
    commands = re.findall(r"^downspout (.*)$", text, re.MULTILINE)[-3:]
    assert list(programs) == ["flights.py", "produce.py"]
    monkeypatch.chdir(tmp_path)
    with SchemaRegistry() as registry:
        here = {
            "localhost:9092": kafka_broker.bootstrap,
            "http://localhost:8081": registry.url,
            '"flights"': f'"{topic_name}"',
        }
        for name, program in programs.items():
            for there, instead in here.items():
                program = program.replace(there, instead)
            (tmp_path / name).write_text(program, encoding="utf-8")
        create, run, audit = (command.replace("localhost:9092", kafka_broker.bootstrap).split() for command in commands)
        assert main([topic_name if word == "flights" else word for word in create]) == 0
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "produce.py"], check=True, env=environment, timeout=120)
        registry.away = True
        asked = len(registry.requests)

        def come_back() -> None:
            while registry.away and len(registry.requests) < asked + 3:  # it was asked, and asked again
                time.sleep(0.01)
            registry.away = False

        back = threading.Thread(target=come_back)
        back.start()
        once = ["--set", "kafka.timeouts_max=1", "--set", "kafka.retries_max=0", "--set", f"kafka.emit={emit}"]
        try:
            assert main([*run, *once]) == 0
        finally:
            registry.away = False
            back.join()
        assert main(audit) == 0
    rows = read_table(tmp_path / "output" / "flights")
    assert sorted(rows["delay"].to_pylist()) == list(range(100))
    assert set(rows["year"].to_pylist()) == {1998}
