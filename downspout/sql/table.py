"""The table of a SQL sink: its settings, its column types, and values in the form of the drivers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from downspout.errors import ConfigError, SinkError
from downspout.offsets.stores.database import Row, TableColumn, check_url
from downspout.settings.table import SETTINGS
from downspout.sink.schema import ORIGIN_SCHEMA, Columns

DATABASE, PASSWORD, TABLE, KEYS, SCHEMA = (
    f"sql.{name}" for name in ("database", "password", "table", "keys", "schema")
)


def check(conf: Mapping[str, Any]) -> None:
    """Raise a ConfigError if settings are invalid, by themselves or together."""
    if (url := conf.get(DATABASE)) is not None:
        check_url(str(url), DATABASE, PASSWORD)
    if conf.get(TABLE) is not None and not all(part.strip() for part in str(conf[TABLE]).split(".")):
        raise ConfigError(f"{TABLE} = {conf[TABLE]!r} does not name a table", cure="flights, or schema.flights")
    declared = SETTINGS[SCHEMA].parse(conf.get(SCHEMA), "spec")
    if not declared:
        return
    names = Columns.parse(declared, SCHEMA).names
    for key in SETTINGS[KEYS].parse(conf.get(KEYS) or [], "spec"):
        if key not in names:
            raise ConfigError(f"{KEYS}: no column {key} in {SCHEMA}", cure=f"one of {', '.join(names)}")


# --- columns ---

DIGITS_MAX = 38
KINDS = {
    "smallint": "int16", "integer": "int32", "bigint": "int64", "real": "float32", "double precision": "float64",
    "boolean": "bool", "bytea": "binary", "date": "date", "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamp",
}  # fmt: skip
"""PostgreSQL's name of a type → ours. It converts texts to all others: uuid, json, enumerations."""
AFFINITIES = (
    ("bool", "bool"), ("int", "int64"), ("char", "string"), ("clob", "string"), ("text", "string"), ("json", "string"),
    ("blob", "binary"), ("real", "float64"), ("floa", "float64"), ("doub", "float64"), ("timestamp", "timestamp"),
    ("datetime", "timestamp"), ("date", "date"), ("numeric", "float64"), ("decimal", "float64"),
)  # fmt: skip
"""What a declared type of SQLite's contains → the type that its values have, by the rules of its manual; and the names
that people give to dates."""
PLAIN = re.compile(r"(string|binary|bool|u?int\d+|float\d+|date|timestamp(_s|_ms|_us)?|decimal\(.*\))")


def columns_of(
    table: str, found: Sequence[TableColumn], declared: Sequence[str] | None, *, given: Collection[str], sqlite: bool
) -> Columns:
    """Return the columns to write: the declared ones, or else all of the table's except origins.

    Args:
        given: the fields that all inputs have; a column with a default is written only if it is one of them.

    Raises:
        ConfigError: a declared column is not in the table, or a type is unknown or cannot be written.
        SinkError: a column that needs a value would get none.
    """
    names = {column.name for column in found}
    if declared:
        columns = Columns.parse(declared, "sql.schema")
        for column in columns.columns:
            if column.name not in names:
                raise ConfigError(f"sql.schema: table {table} has no column {column.name}", cure=_one_of(names))
            if not PLAIN.fullmatch(column.kind):
                raise ConfigError(
                    f"sql.schema: {column.declared} has no counterpart in a table",
                    cure="string, with the value as JSON",
                )
        _check_exact(table, found, columns, sqlite=sqlite)
        return columns
    ours = [
        column
        for column in found
        if column.name not in ORIGIN_SCHEMA.names and (column.name in given or not column.filled)
    ]
    columns = Columns.parse([_declared(table, column, sqlite=sqlite) for column in ours], f"the columns of {table}")
    _check_exact(table, found, columns, sqlite=sqlite)
    return columns


def _check_exact(table: str, found: Sequence[TableColumn], columns: Columns, *, sqlite: bool) -> None:
    """Raise if a database would round, truncate or change a value without an error."""
    kinds = {column.name: column.kind for column in found}
    for column in columns.columns:
        loses = _sqlite_loses if sqlite else _postgres_loses
        if why := loses(kinds[column.name], column.kind):
            raise ConfigError(
                f"table {table}: {column.name} is {kinds[column.name]}, which {why}, and {column.kind} by sql.schema: "
                "such a value would be changed silently",
                cure="a column of the table, or a type in sql.schema, that holds each value exactly",
            )


_WHOLE = {"int8": 3, "int16": 5, "int32": 10, "int64": 19}
"""Whole numbers, and how many digits they have."""


def _postgres_loses(there: str, kind: str) -> str:
    """Return how a PostgreSQL column changes some values of a type; empty if it keeps or refuses every value.

    >>> _postgres_loses("numeric(5,2)", "decimal(9,4)"), _postgres_loses("numeric", "decimal(38,10)")
    ('rounds to 2 places', '')
    >>> _postgres_loses("real", "float64"), _postgres_loses("bigint", "float64"), _postgres_loses("date", "timestamp")
    ('has 6 digits', 'rounds to whole numbers', 'drops the time of the day')
    """
    plain, precision = re.sub(r"\([\d,]+\)", "", there), re.search(r"\((\d+)(?:,(\d+))?\)", there)
    moment, number = kind.startswith("timestamp"), kind.startswith(("decimal", "float"))
    if plain == "date":
        return "drops the time of the day" if moment else ""
    if plain.startswith("timestamp") and precision and int(precision[1]) < 6:
        return f"rounds to {precision[1]} digits of a second" if moment else ""
    if plain in ("smallint", "integer", "bigint"):
        return "rounds to whole numbers" if number else ""
    if plain == "real":
        return "has 6 digits" if kind == "float64" or kind.startswith("decimal") or _WHOLE.get(kind, 0) > 6 else ""
    if plain == "double precision":
        return "has 15 digits" if kind.startswith("decimal") or _WHOLE.get(kind, 0) > 15 else ""
    if plain == "numeric":
        if kind.startswith("float"):
            return "keeps 15 digits of a float"
        places = int(precision[2] or 0) if precision else None
        scale = int(kind.rpartition(",")[2].rstrip(")")) if kind.startswith("decimal") else 0
        return f"rounds to {places} places" if places is not None and scale > places else ""
    return ""


def _sqlite_loses(there: str, kind: str) -> str:
    """Return the same for a SQLite column, by its affinity: texts that look like numbers become numbers.

    >>> _sqlite_loses("double", "int64"), _sqlite_loses("decimal(20,2)", "decimal(20,2)")
    ('has 15 digits', 'has 15 digits')
    >>> _sqlite_loses("integer", "string"), _sqlite_loses("json", "string"), _sqlite_loses("real", "float64")
    ('turns texts that look like numbers into numbers', '', '')
    """
    if any(part in there for part in ("char", "clob", "text", "blob", "json")) or not there:
        return ""
    is_real = "int" not in there and any(part in there for part in ("real", "floa", "doub"))
    is_numeric = not any(part in there for part in ("date", "time"))
    if kind == "string":
        return "turns texts that look like numbers into numbers" if is_numeric else ""
    if kind.startswith("decimal") and int(kind[8:].partition(",")[0]) > 15:
        return "has 15 digits"
    return "has 15 digits" if is_real and _WHOLE.get(kind, 0) > 15 else ""


def check_complete(table: str, found: Sequence[TableColumn], columns: Columns) -> None:
    """Raise if a NOT NULL column without a default would get no value."""
    missing = [
        column.name
        for column in found
        if column.required and not column.filled and column.name not in (*columns.names, *ORIGIN_SCHEMA.names)
    ]
    if missing:
        raise SinkError(
            f"table {table}: {', '.join(missing)} takes no null, and sql.schema does not name it",
            cure="name it in sql.schema, or give it a default",
        )


def _declared(table: str, column: TableColumn, *, sqlite: bool) -> str:
    kind = _sqlite_kind(column.kind) if sqlite else _postgres_kind(column.kind)
    if kind is None:
        raise ConfigError(
            f"table {table}: the type of {column.name} ({column.kind or 'none'}) does not say what it takes",
            cure=f'sql.schema: schema={{"{column.name}": "string", …}}',
        )
    return f"{column.name}:{kind}{'!' if column.required else ''}"


def _sqlite_kind(kind: str) -> str | None:
    """Return our type for a declared type of SQLite.

    >>> [_sqlite_kind(kind) for kind in ("varchar(20)", "unsigned big int", "decimal(10,5)", "datetime", "")]
    ['string', 'int64', 'float64', 'timestamp', None]
    """
    return next((ours for part, ours in AFFINITIES if part in kind), None)


def _postgres_kind(kind: str) -> str:
    """Return our type for one of PostgreSQL's.

    >>> [_postgres_kind(kind) for kind in ("integer", "numeric(10,2)", "numeric", "character varying(5)", "uuid")]
    ['int32', 'decimal(10,2)', 'decimal(38,10)', 'string', 'string']
    """
    if kind.startswith("numeric"):
        digits = re.fullmatch(r"numeric\((\d+),(\d+)\)", kind)
        if digits is None:
            return f"decimal({DIGITS_MAX},10)"
        return f"decimal({min(int(digits[1]), DIGITS_MAX)},{digits[2]})"
    plain = re.sub(r"\(\d+\)", "", kind)  # timestamp(3) without time zone
    return KINDS.get(plain, "string")


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows as the drivers take them. O(n).

    Dates, times and decimals go as texts: SQLite has no types for them, and PostgreSQL reads texts as what the column
    is. It is also the fastest way, since Arrow writes them.

    >>> columns = Columns.parse(["day:date", "at:timestamp", "price:decimal(6,2)", "seats:int16"])
    >>> rows_of(columns.table([["2013-01-31"], ["2013-01-31T05:17:00+01:00"], [12], [None]])[0])
    [('2013-01-31', '2013-01-31 04:17:00.000000Z', '12.00', None)]
    """
    values: list[Sequence[Any]] = []
    for array in table.columns:
        plain = array.type
        if pa.types.is_date(plain) or pa.types.is_timestamp(plain) or pa.types.is_decimal(plain):
            array = array.cast(pa.string())
        values.append(array.to_pylist())
    return list(zip(*values, strict=True)) if values else []


def create_statement(table: str, declared: Sequence[str]) -> str:
    """Return a CREATE TABLE for columns that were declared, for a message.

    Names are quoted, as in our own statements: without quotes PostgreSQL would misread ``Flights`` and ``order``.

    >>> create_statement("my.flights", ["order:string!", "delay:int16"])
    'CREATE TABLE "my"."flights" ("order" TEXT NOT NULL, "delay" SMALLINT)'
    """
    kinds: Mapping[str, str] = {
        "string": "TEXT", "binary": "BYTEA", "bool": "BOOLEAN", "int8": "SMALLINT", "int16": "SMALLINT",
        "int32": "INTEGER", "int64": "BIGINT", "float32": "REAL", "float64": "DOUBLE PRECISION", "date": "DATE",
    }  # fmt: skip
    parts = [
        f"{_quoted(column.name)} {kinds.get(column.kind, column.kind.upper())}{' NOT NULL' if column.required else ''}"
        for column in Columns.parse(declared, "sql.schema").columns
    ]
    return f"CREATE TABLE {'.'.join(map(_quoted, table.split('.')))} ({', '.join(parts)})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _one_of(names: set[str]) -> str:
    return f"one of {', '.join(sorted(names))}"
