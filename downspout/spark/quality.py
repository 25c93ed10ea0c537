"""Data quality: checks of a table, and a report of the rows that fail them.

A check is declared once and runs on a batch (:func:`check`), on each micro-batch of a stream (``quality_stream``), or
on both. All checks of single rows share *one aggregation*, which also finds the first rows that fail, with their Kafka
coordinates. The table of a reference is joined in the same pass, and must fit into memory. Only ``unique`` moves rows,
and costs a pass of its own.

>>> checks = [not_null("carrier"), in_range("distance", 1, 5_000), unique("flight", severity="warn")]
>>> [check.name for check in checks]
['carrier is not null', '1 <= distance <= 5000', 'flight is unique']

As in SQL's CHECK and FOREIGN KEY, a null fails only :func:`not_null`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

from downspout.errors import ConfigError
from downspout.formatting import counted, nearest
from downspout.spark.quality_report import Check, Metrics, Report, Severity, evaluate
from downspout.spark.read import ORIGIN_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "Check", "check", "condition", "freshness", "in_range", "matches", "measures", "not_null", "one_of", "prepare",
    "references", "row_count", "unique",
]  # fmt: skip

EXAMPLES = 3  # How many offending rows a report shows by default


def not_null(*columns: str, severity: Severity = "error", share: float = 1.0) -> Check:
    """Each of these columns has a value."""
    name = f"{', '.join(columns)} {'are' if len(columns) > 1 else 'is'} not null"
    return _row(name, columns, lambda c: ~reduce(lambda a, b: a | b, [one.isNull() for one in c]), severity, share)


def in_range(
    column: str, low: Any = None, high: Any = None, *, severity: Severity = "error", share: float = 1.0
) -> Check:
    """A value lies between two others, both included; None: open on that side. NaN is greater than any number."""
    if low is None and high is None:
        raise ConfigError(f"in_range({column!r}) has no bound", cure=f"in_range({column!r}, 0, 100)")
    name = f"{'' if low is None else f'{low} <= '}{column}{'' if high is None else f' <= {high}'}"

    def passes(given: Sequence[Column]) -> Column:
        bounds = [given[0] >= low] * (low is not None) + [given[0] <= high] * (high is not None)
        return reduce(lambda a, b: a & b, bounds)

    return _row(name, (column,), passes, severity, share)


def one_of(column: str, values: Iterable[Any], *, severity: Severity = "error", share: float = 1.0) -> Check:
    """A value is one of the given ones."""
    known = list(values)
    shown = ", ".join(map(str, known[:4] + ["…"] * (len(known) > 4)))
    return _row(f"{column} is one of {shown}", (column,), lambda c: c[0].isin(known), severity, share)


def matches(column: str, pattern: str, *, severity: Severity = "error", share: float = 1.0) -> Check:
    """The whole text matches a regular expression (Java's, which Spark uses)."""
    whole = rf"\A(?:{pattern})\z"
    return _row(f"{column} matches {pattern}", (column,), lambda c: c[0].rlike(whole), severity, share)


def references(
    columns: str | Sequence[str],
    table: DataFrame,
    keys: str | Sequence[str] | None = None,
    *,
    severity: Severity = "error",
    share: float = 1.0,
    name: str = "",
) -> Check:
    """A value exists in another table, of which every task gets a copy.

    Args:
        columns: one, or several that refer together.
        table: a batch DataFrame.
        keys: its columns, if they are called otherwise.
        severity: ``error`` or ``warn``, for the report.
        share: the share of rows that must pass.
        name: of the other table, for the report.
    """
    own = (columns,) if isinstance(columns, str) else tuple(columns)
    there = own if keys is None else (keys,) if isinstance(keys, str) else tuple(keys)
    if len(own) != len(there):
        raise ConfigError(f"{len(own)} columns cannot refer to {len(there)}", cure="as many keys as columns")
    text = f"{', '.join(own)} {'are' if len(own) > 1 else 'is'} in {name or ', '.join(there)}"
    return Check(text, "row", own, severity, share, table=(table, there))


def condition(
    sql: str, *, columns: Sequence[str] = (), name: str = "", severity: Severity = "error", share: float = 1.0
) -> Check:
    """An SQL condition holds in each row: ``condition("arr_time > dep_time")``.

    Args:
        sql: of type boolean. Where a value cannot be converted Spark stops with an error: use ``try_cast``.
        columns: what an example shows besides the coordinates.
        name: what must hold, in words; default: the condition.
        severity: ``error`` or ``warn``, for the report.
        share: the share of rows that must pass.
    """

    def passes() -> Column:
        from pyspark.sql import functions as F

        return F.expr(sql)

    return Check(name or sql, "row", tuple(columns), severity, share, passes)


def unique(*columns: str, name: str = "", severity: Severity = "error") -> Check:
    """No two rows have the same values there; rows with a null in one of them are left out, as in SQL.

    In a stream: no two rows of one micro-batch.
    """
    text = name or f"{', '.join(columns)} {'are' if len(columns) > 1 else 'is'} unique"
    return Check(text, "unique", columns, severity)


def row_count(low: int | None = 1, high: int | None = None, *, severity: Severity = "error") -> Check:
    """The number of rows is within bounds."""
    if low is None and high is None:
        raise ConfigError("row_count has no bound", cure="row_count(1)")
    if high is None:
        text = f"at least {counted(low or 0, 'row')}"
    else:
        text = f"{'at most' if low is None else f'{low:,} to'} {counted(high, 'row')}"
    return Check(text, "count", severity=severity, bounds=(low, high))


def freshness(column: str, age: timedelta, *, now: datetime | None = None, severity: Severity = "error") -> Check:
    """The newest value of a timestamp column is not older than ``age``; none at all is too old.

    Args:
        column: of type timestamp.
        age: the greatest age.
        now: the time to compare with; None: the time at which the check runs.
        severity: ``error`` or ``warn``, for the report.
    """
    if now is not None and now.tzinfo is None:
        now = now.replace(tzinfo=UTC)
    return Check(f"{column} is at most {age} old", "freshness", (column,), severity, age=age, now=now)


def _row(
    name: str, columns: Sequence[str], passes: Callable[[Sequence[Column]], Column], severity: Severity, share: float
) -> Check:
    def late() -> Column:
        from pyspark.sql import functions as F

        return passes([F.col(column) for column in columns])

    return Check(name, "row", tuple(columns), severity, share, late)


def check(frame: DataFrame, checks: Sequence[Check], *, name: str = "", examples: int = EXAMPLES) -> Report:
    """Check a batch and return the report.

    Args:
        frame: a batch DataFrame; with origin columns (``read_sink(…, origins=True)``) the examples say which records.
        checks: what must hold.
        name: of the table, for the report.
        examples: how many offending rows to show for each check.

    Raises:
        ConfigError: a check does not fit the table: no such column, no condition, two checks of one name.
    """
    prepared = prepare(frame, checks)
    found: Metrics = prepared.agg(*measures(prepared, checks, examples)).first().asDict(recursive=True)
    for number, one in enumerate(checks):
        if one.kind == "unique":
            found |= _repeated(frame, one, number, examples)
    return evaluate(checks, found, name=name)


def prepare(frame: DataFrame, checks: Sequence[Check]) -> DataFrame:
    """Return the rows with a column more for each reference: whether the other table has it.

    Raises:
        ConfigError: as in :func:`check`.
    """
    from pyspark.sql import functions as F

    _validate(frame, checks)
    for number, one in enumerate(checks):
        if one.table is not None:
            table, keys = one.table
            names = [f"_ref_{number}_{place}" for place in range(len(keys))]
            there = table.select(*(F.col(key).alias(name) for key, name in zip(keys, names, strict=True))).distinct()
            there = there.withColumn(f"_ref_{number}", F.lit(True))
            same = [frame[own] == there[name] for own, name in zip(one.columns, names, strict=True)]
            frame = frame.join(F.broadcast(there), reduce(lambda a, b: a & b, same), "left").drop(*names)
    return frame


def measures(frame: DataFrame, checks: Sequence[Check], examples: int = EXAMPLES) -> list[Column]:
    """Return the aggregates that all checks but ``unique`` need; ``frame`` is what :func:`prepare` returned."""
    from pyspark.sql import functions as F

    columns = [F.count(F.lit(1)).alias("rows")]
    for number, one in enumerate(checks):
        if one.kind == "row":
            offends = ~F.coalesce(_passes(one, number), F.lit(True))
            shown = _shown(frame, one.columns)
            origins = _origins(frame)
            order = F.when(offends, F.struct(*origins) if origins else shown)
            columns += [
                F.count_if(offends).alias(f"failed_{number}"),
                F.min_by(shown, order, examples).alias(f"examples_{number}"),
            ]
        elif one.kind == "freshness":
            columns.append(F.unix_micros(F.max(one.columns[0])).alias(f"newest_{number}"))
    return columns


def _passes(one: Check, number: int) -> Column:
    from pyspark.sql import functions as F

    if one.passes is not None:
        return one.passes()
    is_null = reduce(lambda a, b: a | b, [F.col(column).isNull() for column in one.columns])
    return is_null | F.col(f"_ref_{number}").isNotNull()


def _origins(frame: DataFrame, without: Sequence[str] = ()) -> list[str]:
    """Return the columns that say which record a row came from; examples are ordered by them."""
    return [name for name in ORIGIN_COLUMNS if name in frame.columns and name not in without]


def _shown(frame: DataFrame, columns: Sequence[str]) -> Column:
    """Return an example, as JSON: values of any type go through Spark's metrics that way."""
    from pyspark.sql import functions as F

    origins = [name for name in _origins(frame) if name != "_topic_id"]
    names = dict.fromkeys([*origins, *columns]) or frame.columns
    return F.to_json(F.struct(*names), {"ignoreNullFields": "false"})


def _repeated(frame: DataFrame, one: Check, number: int, examples: int) -> Metrics:
    """Return how many rows too many there are, and of the first keys the last of their rows."""
    from pyspark.sql import functions as F

    keys = list(one.columns)
    origins = _origins(frame, keys)
    last = [F.max(F.struct(*origins)).alias("last")] if origins else []
    groups = frame.dropna("any", subset=keys).groupBy(*keys).agg(F.count(F.lit(1)).alias("rows_alike"), *last)
    many = groups.where("rows_alike > 1")
    if origins:
        many = many.select(*keys, "rows_alike", "last.*")
    shown = _shown(many, [*keys, "rows_alike"])
    row = many.agg(
        F.coalesce(F.sum(F.col("rows_alike") - 1), F.lit(0)).alias(f"failed_{number}"),
        F.min_by(shown, F.struct(*keys), examples).alias(f"examples_{number}"),
    ).first()
    return dict(row.asDict(recursive=True))


def _validate(frame: DataFrame, checks: Sequence[Check]) -> None:
    """Raise a ConfigError for the first check that does not fit the table. Analyses, and reads nothing."""
    names: dict[str, int] = {}
    for number, one in enumerate(checks):
        if names.setdefault(one.name, number) != number:
            raise ConfigError(f"there are two checks {one.name!r}", cure="leave one out, or rename one")
        _has(frame, one.columns, one.name)
        if one.table is not None:
            _has(one.table[0], one.table[1], one.name)
        if one.kind == "freshness" and dict(frame.dtypes)[one.columns[0]] not in ("timestamp", "timestamp_ntz"):
            raise ConfigError(f"{one.name}: {one.columns[0]} is not a timestamp", cure="a column of type timestamp")
        if one.passes is not None:
            _analyse(frame, one)


def _has(frame: DataFrame, columns: Iterable[str], name: str) -> None:
    for column in columns:
        if column not in frame.columns:
            cure = nearest(column, frame.columns, ", ".join(frame.columns))
            raise ConfigError(f"{name}: the table has no column {column}", cure=cure)


def _analyse(frame: DataFrame, one: Check) -> None:
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import BooleanType

    assert one.passes is not None
    try:
        kind = frame.select(one.passes()).schema[0].dataType
    except AnalysisException as error:  # ParseException is one
        why = str(error).strip().splitlines()[0]
        raise ConfigError(f"{one.name}: {why}", cure="a condition over the table's columns") from None
    if not isinstance(kind, BooleanType):
        raise ConfigError(f"{one.name} is {kind.simpleString()}, not a condition", cure="a comparison")
