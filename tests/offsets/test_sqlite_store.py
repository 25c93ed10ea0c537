from __future__ import annotations

from pathlib import Path

import pytest

from downspout.offsets import open_sql_store
from downspout.spout import StoreContext
from tests.offsets.store_contract import Open, StoreContract


class TestSqlite(StoreContract):
    @pytest.fixture
    def open_bare(self, tmp_path: Path) -> Open:
        url = f"sqlite:///{tmp_path}/offsets.db"
        return lambda group: open_sql_store(url, StoreContext(group))
