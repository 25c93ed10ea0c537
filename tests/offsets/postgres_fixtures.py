"""The fixture ``postgres``, for more than one folder of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demos.postgres import PostgresServer, find_programs, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL; where its programs are not installed the test is skipped."""
    if (programs := find_programs()) is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with postgres_server(programs) as server:
        yield server
