"""One Spark session for all tests: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from downspout.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOWNSPOUT_HOME", str(tmp_path_factory.mktemp("spark-home")))
        with spark_session("tests") as session:
            yield session
