"""Which database is at a URL. Its driver is imported here, at the first need."""

from __future__ import annotations

from downspout.offsets.stores.database import Database, check_url


def open_database(
    url: str, setting: str, *, password: str | None = None, password_setting: str = "", wait_s: float
) -> Database:
    """Return the database at a URL: ``sqlite:///flights.db``, ``postgresql://user@host/name``.

    Args:
        setting: where the URL was given, for messages.
        password: resolved; None: the driver looks where it always does.
        password_setting: where the password may be given.
        wait_s: how long a statement waits for a lock.

    Raises:
        ConfigError: the URL is out of form, or a password is in it.
        MissingExtraError: the driver is not installed.
    """
    check_url(url, setting, password_setting)
    if url.startswith("sqlite:"):
        from downspout.offsets.stores.sqlite import SqliteDatabase

        return SqliteDatabase(url, setting, wait_s)
    from downspout.offsets.stores.postgres import PostgresDatabase

    return PostgresDatabase(url, password, wait_s)
