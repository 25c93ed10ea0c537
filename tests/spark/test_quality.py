"""Checks of data quality on batches, and their report."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from downspout.errors import ConfigError, QualityError
from downspout.spark import Check, Report, check, freshness, in_range, not_null, references, row_count, unique
from downspout.spark.quality import condition, matches, one_of
from downspout.spark.quality_report import Result, evaluate, merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NOON = datetime(2013, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    """Five rows of two partitions, as a sink would write them, in no order."""
    schema = (
        "customer string, amount double, item string, at timestamp, "
        "_topic string, _topic_id string, _partition int, _offset bigint, _path string"
    )
    return spark.createDataFrame(
        [
            (customer, amount, item, NOON - timedelta(hours=hours), "orders", "id", partition, offset, "")
            for customer, amount, item, hours, partition, offset in [
                ("bob", -1.0, "x1", 3, 1, 7),
                (None, None, None, 5, 0, 2),
                ("eve", 50.0, "y\n1", 4, 1, 8),
                ("ann", 7.5, "x1", 2, 0, 0),
                ("ann", float("nan"), "x22", 9, 0, 1),
            ]
        ],
        schema,
    )


def offsets(result: Result) -> list[tuple[int, int]]:
    """Return which records the examples are."""
    return [(example["_partition"], example["_offset"]) for example in result.examples]


def one(frame: DataFrame, checked: Check, **more: Any) -> Result:
    """Return what became of a single check."""
    return check(frame, [checked], **more).results[0]


@pytest.mark.parametrize(
    ("checked", "failing"),
    [
        (not_null("customer"), [(0, 2)]),
        (not_null("customer", "item"), [(0, 2)]),
        (in_range("amount", 0, 50), [(0, 1), (1, 7)]),
        (in_range("amount", low=0), [(1, 7)]),
        (in_range("amount", high=7.5), [(0, 1), (1, 8)]),
        (one_of("customer", ["ann", "bob"]), [(1, 8)]),
        (matches("item", r"[a-z]\d"), [(0, 1), (1, 8)]),
        (matches("item", r"x1|x22"), [(1, 8)]),
        (condition("amount > 0 OR item = 'x1'"), []),
        (condition("amount <> 7.5"), [(0, 0)]),
    ],
    ids=lambda value: value.name if isinstance(value, Check) else "",
)
def test_a_row_check_names_the_records(orders: DataFrame, checked: Check, failing: list[tuple[int, int]]) -> None:
    """Each check fails for exactly the rows that offend, named by partition and offset; null breaks no rule."""
    result = one(orders, checked)
    assert (offsets(result), result.failed, result.passed) == (failing, len(failing), not failing)


def test_references_find_what_is_not_there(spark: SparkSession, orders: DataFrame) -> None:
    """A value or pair that the other table lacks offends; one that it has twice counts once; null breaks no rule."""
    customers = spark.createDataFrame(
        [("ann", "x1"), ("ann", "x1"), ("bob", "x1"), (None, "x1")], "name string, item string"
    )
    report = check(
        orders,
        [
            references("customer", customers, "name", name="customers"),
            references(["customer", "item"], customers, ["name", "item"]),
        ],
    )
    assert report.rows == 5
    assert [offsets(result) for result in report.results] == [[(1, 8)], [(0, 1), (1, 8)]]
    assert report.results[0].check == "customer is in customers"


def test_unique_counts_the_rows_too_many(orders: DataFrame) -> None:
    """Of four equal rows three are too many; the example says how many and where the last is; null repeats nothing."""
    result = one(orders.union(orders.where("_offset < 2")), unique("customer"))
    assert (result.failed, result.passed) == (3, False)
    assert [(example["customer"], example["rows_alike"]) for example in result.examples] == [("ann", 4)]
    assert offsets(result) == [(0, 1)]
    assert one(orders, unique("_topic", "_partition", "_offset")).passed
    nothing = orders.where("customer IS NULL")
    assert one(nothing.union(nothing), unique("customer")).passed


@pytest.mark.parametrize(
    ("bounds", "passes"), [((5, 5), True), ((6, None), False), ((None, 4), False), ((1, None), True)]
)
def test_row_count(orders: DataFrame, bounds: tuple[int | None, int | None], passes: bool) -> None:
    """The bounds of the number of rows are both included."""
    assert one(orders, row_count(*bounds)).passed is passes


def test_freshness_goes_by_the_newest(orders: DataFrame) -> None:
    """The newest value may be as old as is said, to the microsecond; no value at all is too old."""
    assert one(orders, freshness("at", timedelta(hours=2), now=NOON)).passed
    result = one(orders, freshness("at", timedelta(hours=2), now=NOON + timedelta(microseconds=1)))
    assert (result.passed, result.detail) == (False, "the newest is of 2013-06-01 10:00:00 UTC")
    assert not one(orders.where("false"), freshness("at", timedelta(days=9_999))).passed
    assert not one(orders, freshness("at", timedelta(days=365))).passed  # by today's clock


def test_a_share_may_fail(orders: DataFrame) -> None:
    """With share=0.8 one row of five may offend and two may not; what offends is shown all the same."""
    allowed = one(orders, not_null("customer", share=0.8))
    assert (allowed.passed, allowed.failed, offsets(allowed)) == (True, 1, [(0, 2)])
    assert not one(orders, in_range("amount", 0, 50, share=0.8)).passed


def test_an_empty_table_offends_no_row_check(orders: DataFrame) -> None:
    """Nothing is wrong with the rows of a table that has none; that there are none is for row_count to say."""
    checks = [not_null("customer"), in_range("amount", 0, 1, share=0.5), unique("customer"), row_count(1)]
    report = check(orders.where("false"), checks)
    assert [result.passed for result in report.results] == [True, True, True, False]


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_all_row_checks_are_one_pass(spark: SparkSession, orders: DataFrame) -> None:
    """However many checks look at rows, the table is read once; each unique reads it once more."""
    reads = spark.sparkContext.accumulator(0)

    def counted(batches: Any) -> Any:
        for batch in batches:
            reads.add(batch.num_rows)
            yield batch

    watched = orders.mapInArrow(counted, orders.schema)
    other = spark.createDataFrame([("ann",)], "customer string")
    checks = [not_null("customer"), in_range("amount", 0), matches("item", "x.*"), references("customer", other)]
    check(watched, [*checks, row_count(), freshness("at", timedelta(days=1)), condition("amount < 9")])
    assert reads.value == 5
    check(watched, [*checks, unique("customer")])
    assert reads.value == 5 + 10


def test_examples_without_coordinates(orders: DataFrame) -> None:
    """Rows that do not say where they come from are shown by their columns, in an order that is always the same."""
    plain = orders.select("amount", "customer")
    result = one(plain.repartition(3), in_range("amount", 0, 8), examples=2)
    assert result.failed == 3
    assert [example["amount"] for example in result.examples] == ["NaN", -1.0]
    assert one(plain, condition("customer <> 'bob'")).examples == ({"amount": -1.0, "customer": "bob"},)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: [not_null("custmer")], r"the table has no column custmer\. Try: customer"),
        (lambda: [condition("amount >")], "amount >: .*PARSE_SYNTAX_ERROR"),
        (lambda: [condition("amuont > 1")], "amuont > 1: .*UNRESOLVED_COLUMN"),
        (lambda: [condition("amount + 1")], "amount \\+ 1 is double, not a condition"),
        (lambda: [not_null("item"), not_null("item")], "two checks 'item is not null'"),
        (lambda: [freshness("amount", timedelta(1))], "amount is not a timestamp"),
        (lambda: [in_range("amount")], "has no bound"),
        (lambda: [row_count(None, None)], "has no bound"),
        (lambda: [not_null("item", severity="fatal")], "severity = 'fatal'"),  # type: ignore[arg-type]
        (lambda: [not_null("item", share=99)], "share = 99"),
    ],
)
def test_a_check_that_does_not_fit_is_refused(orders: DataFrame, make: Any, said: str) -> None:
    """A wrong column (the nearest is suggested), a condition that is none and the like fail before a row is read."""
    with pytest.raises(ConfigError, match=said):
        check(orders, make())


def test_references_that_do_not_fit_are_refused(spark: SparkSession, orders: DataFrame) -> None:
    """A key that the other table lacks, and another number of keys, are errors with a cure."""
    other = spark.createDataFrame([("ann",)], "name string")
    with pytest.raises(ConfigError, match=r"has no column nam\. Try: name"):
        check(orders, [references("customer", other, "nam")])
    with pytest.raises(ConfigError, match="2 columns cannot refer to 1"):
        references(["customer", "item"], other, "name")


# --- the report ---


@pytest.fixture
def report(orders: DataFrame) -> Report:
    """A check that holds, a warning and an error."""
    checks = [not_null("at"), not_null("customer", severity="warn"), matches("item", "x.*")]
    return check(orders, checks, name="orders")


def test_only_errors_make_the_exit_code(report: Report) -> None:
    """An error makes it 14, and is raised with the first record; a warning alone makes it 0, and raises nothing."""
    assert (report.exit_code, report.verdict) == (14, "orders: 1 of 3 checks hold for 5 rows; 1 error, 1 warning")
    with pytest.raises(
        QualityError, match=r'orders: item matches x\.\*: 1 row of 5 \(20\.00 %\) \(orders\[1\]@8: item="y'
    ) as raised:
        report.raise_for_errors()
    assert raised.value.exit_code == report.exit_code
    warned = Report("orders", 5, report.results[:2])
    assert (warned.exit_code, [result.check for result in warned.warnings]) == (0, ["customer is not null"])
    warned.raise_for_errors()


def test_the_report_on_screen(report: Report) -> None:
    """The table has a line for each check, with what was found and the first offending records."""
    console = Console(file=io.StringIO(), width=200)
    report.show(console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "orders: 1 of 3 checks hold for 5 rows; 1 error, 1 warning" in said
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if "│" in line]
    assert lines == [
        ["ok", "at is not null", "all rows", ""],
        ["warn", "customer is not null", "1 row of 5 (20.00 %)", "orders[0]@2: customer=null"],
        ["ERROR", "item matches x.*", "1 row of 5 (20.00 %)", 'orders[1]@8: item="y\\n1"'],
    ]


def test_the_report_as_files(report: Report, tmp_path: Path) -> None:
    """JSON says all of it; Markdown has a line for each check, in which nothing of the data is taken for Markdown."""
    report.write(tmp_path / "new" / "report.json")
    report.write(tmp_path / "report.md")
    read = json.loads((tmp_path / "new" / "report.json").read_text(encoding="utf-8"))
    assert (read["exit_code"], read["rows"], [one["passed"] for one in read["checks"]]) == (14, 5, [True, False, False])
    assert read["checks"][2]["examples"] == [
        {"_topic": "orders", "_partition": 1, "_offset": 8, "_path": "", "item": "y\n1"}
    ]
    lines = (tmp_path / "report.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# orders"
    assert lines[-1] == '| ERROR | item matches x.\\* | 1 row of 5 (20.00 %) | orders\\[1]@8: item="y\\\\n1" |'
    with pytest.raises(ConfigError, match=r"written as \.json or \.md"):
        report.write(tmp_path / "report.html")


def test_parts_make_the_whole(spark: SparkSession, orders: DataFrame) -> None:
    """The counts of two parts of a table, merged, make the report of the whole."""
    from downspout.spark.quality import measures, prepare

    checks = [in_range("amount", 8, 9), freshness("at", timedelta(hours=3), now=NOON), row_count(5, 5)]

    def counts(frame: DataFrame) -> dict[str, Any]:
        prepared = prepare(frame, checks)
        return dict(prepared.agg(*measures(prepared, checks)).first().asDict(recursive=True))

    parts = [orders.where("_offset % 2 = 0"), orders.where("_offset % 2 = 1")]
    merged = merge(counts(parts[0]), counts(parts[1]), 3)
    assert evaluate(checks, merged, name="o") == check(orders, checks, name="o")
    assert len(check(orders, checks).results[0].examples) == 3
