from __future__ import annotations

import pytest

from downspout.errors import ConfigError
from downspout.offsets.stores.database import check_url
from downspout.settings import shown
from downspout.settings.secrets import HIDDEN

SETTING = "sql.database"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hush@db/flights",
        "postgresql://me:hu/hush@db/flights",
        "postgresql://me:hu#hush@db/flights",
        "postgresql://me:hu?hush@db/flights",
        "postgresql:///flights?user=me&password=hush",
        "postgres:me:hush@db/flights",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    """Also where its characters are not escaped, so that the URL says something else."""
    with pytest.raises(ConfigError, match=SETTING) as raised:
        check_url(url, SETTING, "sql.password")
    assert "hush" not in str(raised.value)
    if "://" in url:
        assert shown(SETTING, url) == HIDDEN


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///a:b@c.db",
        "postgresql://me@db/flights",
        "postgresql://db:5432/flights?user=me@corp",
        "postgresql://[::1]:5432/flights?user=me@corp",
        "postgresql://a:5432,b:5433/flights?target_session_attrs=read-write",
    ],
)
def test_a_url_without_a_password_is_shown(url: str) -> None:
    """A colon and an at sign elsewhere mean nothing."""
    check_url(url, SETTING, "sql.password")
    assert shown(SETTING, url) == url
