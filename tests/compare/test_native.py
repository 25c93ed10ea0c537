"""The native Spark version's process, without Spark."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

import downspout.spark
import downspout.spark.session
from downspout.compare import native
from downspout.spark import failures
from downspout.testing import VirtualClock


@pytest.mark.parametrize(("said", "tries"), [("Python worker failed to connect back", 3), ("no such column", 1)])
def test_a_python_worker_that_is_late_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: str, tries: int
) -> None:
    """What Spark gives too little time for is done again, with a line on standard error; any other error ends it."""
    done: list[Any] = []

    def write(spark: Any, make_tables: Any, plan: Any) -> None:
        done.append(plan)
        if len(done) < 3:
            raise RuntimeError(f"Job aborted: {said}")

    monkeypatch.setattr(native, "_write_tables", write)
    monkeypatch.setattr(native, "load_module", lambda target: SimpleNamespace(native=print))
    monkeypatch.setattr(failures, "SYSTEM_CLOCK", VirtualClock())
    monkeypatch.setattr(downspout.spark, "register", lambda spark: None)
    monkeypatch.setattr(downspout.spark.session, "spark_session", lambda name, config: contextlib.nullcontext())
    with contextlib.nullcontext() if tries == 3 else pytest.raises(RuntimeError, match=said):
        native.run({"target": "x.py"})
    assert len(done) == tries
    late = "a Python worker of Spark's did not start within 10 s; trying again in"
    assert capsys.readouterr().err == ("" if tries == 1 else f"{late} 2 s\n{late} 4 s\n")
