"""Decisions of the demos on Storm and on Spark before they start anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from demos import on_spark, on_storm, shared
from demos.flights_data import TOTAL
from demos.screen import Screen
from demos.shared import Options, broker_directory
from downspout.broker import default_directory
from downspout.errors import BrokerError
from tests.spout.spout_driver import Kafka


def options(output: Path, flights: int) -> Options:
    """Return what the command line of the demo on Storm says."""
    return Options(output, flights, fresh=False, command="make storm-demo")


def test_fewer_flights_have_a_broker_of_their_own() -> None:
    """All flights are where `make demo` has them; each other number has its own broker, so none is in another's way."""
    assert broker_directory(TOTAL) == default_directory()
    others = {broker_directory(number) for number in (1, 1_145, TOTAL - 1)}
    assert len(others) == 3
    assert default_directory() not in others


def test_the_topology_reads_from_that_broker(tmp_path: Path) -> None:
    """What is submitted names the broker's address, whichever it is."""
    demo = on_storm.StormDemo(options(tmp_path, 10), Screen())
    assert "kafka.bootstrap=127.0.0.1:7" in demo.options("127.0.0.1:7")


def test_a_topic_that_does_not_fit_has_the_cure_of_this_demo(tmp_path: Path, bare_kafka: Kafka) -> None:
    """Where the topic holds more than the flights, the error names the command that publishes them anew."""
    shared.publish(Screen(), options(tmp_path, 40), bare_kafka.bootstrap)
    with pytest.raises(BrokerError, match="make storm-demo FLIGHTS=20 FRESH=1"):
        shared.publish(Screen(), options(tmp_path, 20), bare_kafka.bootstrap)
    assert options(tmp_path, TOTAL).start_over == "make storm-demo FRESH=1"


@pytest.mark.parametrize("demo", [on_storm, on_spark])
@pytest.mark.parametrize("number", ["0", "-1", str(TOTAL + 1), "many"])
def test_a_number_of_flights_that_are_not_there_is_refused(
    number: str, demo: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--flights", number])
    assert f"from 1 to {TOTAL}" in capsys.readouterr().err
