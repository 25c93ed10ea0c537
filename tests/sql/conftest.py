from __future__ import annotations

from pathlib import Path

import pytest

from tests.sql.databases import TestDatabase, postgres_database, sqlite_database


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> TestDatabase:
    if request.param == "sqlite":
        return sqlite_database(tmp_path)
    return postgres_database(request.getfixturevalue("postgres"))


@pytest.fixture
def sqlite(tmp_path: Path) -> TestDatabase:
    return sqlite_database(tmp_path)
