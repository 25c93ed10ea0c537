"""A project in which a topology was run, for the tests of the audit's command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from downspout.audit import ReplayApart
from downspout.engine.load import load
from downspout.testing import FakeKafka, run_topology
from tests.audit.command_support import LINES, TOPOLOGY
from tests.sampling import WHOLE


@pytest.fixture(autouse=True)
def _replays_start_no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the topology of an audit in this process: starting one takes a second.

    That it has a process of its own is tested in test_audit_processes; ``make test-all`` gives it one everywhere.
    """

    def run_here(apart: ReplayApart, records: Sequence[Any]) -> Any:
        return apart.make()(records)

    if not WHOLE and request.module.__name__.rpartition(".")[2] != "test_audit_processes":
        monkeypatch.setattr(ReplayApart, "_run", run_here)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKafka]:
    """A topology that was run, with all that can happen to a line: words, no words, a tombstone, a dead letter."""
    monkeypatch.chdir(tmp_path)
    Path("words_topology.py").write_text(TOPOLOGY, encoding="utf-8")
    with FakeKafka("audit-cli") as kafka:
        kafka.create_topic("lines")
        for line in LINES:
            kafka.produce("lines", line, partition=0)
        settings = {"kafka.bootstrap": kafka.bootstrap, "kafka.group": "g", "kafka.retries_max": 1}
        run_topology(load("words_topology.py"), config=settings)
        yield kafka
