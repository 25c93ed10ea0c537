"""The settings of the scope ``sql``, checked as far as no database is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from downspout.errors import ConfigError
from downspout.offsets.stores.database import check_url
from downspout.settings.table import SETTINGS
from downspout.sink.schema import Columns

DATABASE, PASSWORD, TABLE, KEYS, SCHEMA = (
    f"sql.{name}" for name in ("database", "password", "table", "keys", "schema")
)


def check(conf: Mapping[str, Any]) -> None:
    """Raise a ConfigError where settings make no sense, each for itself or together."""
    if (url := conf.get(DATABASE)) is not None:
        check_url(str(url), DATABASE, PASSWORD)
    if conf.get(TABLE) is not None and not all(part.strip() for part in str(conf[TABLE]).split(".")):
        raise ConfigError(f"{TABLE} = {conf[TABLE]!r} names no table", cure="flights, or schema.flights")
    declared = SETTINGS[SCHEMA].parse(conf.get(SCHEMA), "spec")
    if not declared:
        return
    names = Columns.parse(declared, SCHEMA).names
    for key in SETTINGS[KEYS].parse(conf.get(KEYS) or [], "spec"):
        if key not in names:
            raise ConfigError(f"{KEYS}: no column {key} in {SCHEMA}", cure=f"one of {', '.join(names)}")
