"""A small slice of the real flights, and the topology's output for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from demos.flights_data import Flights, load_flights, publish
from downspout.testing import FakeKafka
from tests.topologies.slices import COUNT, run_flight_delays


@pytest.fixture(scope="session")
def frame() -> pd.DataFrame:
    return load_flights(COUNT)


@pytest.fixture(scope="session")
def flights(frame: pd.DataFrame) -> Flights:
    return Flights(frame)


@pytest.fixture
def kafka(flights: Flights) -> Iterator[FakeKafka]:
    with FakeKafka("slice") as cluster:
        publish(cluster, flights)
        yield cluster


@pytest.fixture
def output(kafka: FakeKafka, tmp_path: Path) -> Path:
    run_flight_delays(kafka, tmp_path)
    return tmp_path
