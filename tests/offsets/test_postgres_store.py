from __future__ import annotations

import signal

import pytest

from demos.postgres import PASSWORD, PostgresServer
from downspout.offsets import open_sql_store
from downspout.spout import OffsetStoreError, StoreContext, StoredOffset
from tests.offsets.store_contract import P0, Open, StoreContract


class TestPostgres(StoreContract):
    @pytest.fixture
    def open_bare(self, postgres: PostgresServer) -> Open:
        url = postgres.new_database()
        return lambda group: open_sql_store(url, StoreContext(group, password=PASSWORD))


def test_a_server_that_is_away_is_waited_for(postgres: PostgresServer) -> None:
    """While the server is down a store says so and that it may pass; when it is there again, all goes on."""
    store = open_sql_store(postgres.new_database(), StoreContext("g", password=PASSWORD))
    epoch = store.claim([P0])[P0].epoch
    postgres.stop(signal.SIGQUIT)
    try:
        with pytest.raises(OffsetStoreError) as raised:
            store.store({P0: StoredOffset(5, "", epoch)})
        assert raised.value.passes
    finally:
        postgres.start()
    store.store({P0: StoredOffset(5, "", epoch)})
    assert store.load([P0])[P0].offset == 5
    store.close()


@pytest.mark.parametrize(("user", "database", "said"), [("nobody", "postgres", "nobody"), ("", "nowhere", "nowhere")])
def test_what_does_not_pass_says_so(postgres: PostgresServer, user: str, database: str, said: str) -> None:
    """A user or a database that does not exist is an error with its name, and no other try is made."""
    url = postgres.url(database).replace("downspout@", f"{user or 'downspout'}@")
    with pytest.raises(OffsetStoreError, match=said) as raised:
        open_sql_store(url, StoreContext("g", password=PASSWORD)).claim([P0])
    assert not raised.value.passes
    assert PASSWORD not in str(raised.value)
