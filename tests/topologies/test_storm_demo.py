"""What the demo on Storm decides before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from downspout.errors import BrokerError
from downspout.kafka.embedded import default_directory
from tests.topology.spout_driver import Kafka
from topologies import storm_demo
from topologies.demo_screen import Screen
from topologies.flights_data import TOTAL


def test_fewer_flights_have_a_broker_of_their_own() -> None:
    """All flights are where `make demo` has them; each other number has its own broker, so none is in another's way."""
    assert storm_demo.broker_directory(TOTAL) == default_directory()
    others = {storm_demo.broker_directory(number) for number in (1, 1_145, TOTAL - 1)}
    assert len(others) == 3
    assert default_directory() not in others


def test_the_topology_reads_from_that_broker(tmp_path: Path) -> None:
    """What is submitted names the broker's address, whichever it is."""
    assert "kafka.bootstrap=127.0.0.1:7" in storm_demo.StormDemo(tmp_path, 10, Screen()).options("127.0.0.1:7")


def test_a_topic_that_does_not_fit_has_the_cure_of_this_demo(tmp_path: Path, bare_kafka: Kafka) -> None:
    """Where the topic holds more than the flights, the error names the command that publishes them anew."""
    storm_demo.StormDemo(tmp_path, 40, Screen()).publish(bare_kafka.bootstrap)
    with pytest.raises(BrokerError, match="make storm-demo FLIGHTS=20 FRESH=1"):
        storm_demo.StormDemo(tmp_path, 20, Screen()).publish(bare_kafka.bootstrap)
    assert storm_demo.start_over(TOTAL) == "make storm-demo FRESH=1"


@pytest.mark.parametrize("number", ["0", "-1", str(TOTAL + 1), "many"])
def test_a_number_of_flights_that_are_not_there_is_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    """There are so many flights and no more."""
    with pytest.raises(SystemExit):
        storm_demo.main(["--flights", number])
    assert f"from 1 to {TOTAL}" in capsys.readouterr().err
