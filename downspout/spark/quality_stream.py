"""Data quality of streams: counted in the pass that writes, or checked before a batch is written.

:class:`StreamQuality` adds the counts of the checks to the plan of a query (``DataFrame.observe``), without another
pass; the query keeps its own sink. It reports rows that fail when they have been written. If they must not be written,
:func:`gate` checks each micro-batch first, by ``foreachBatch``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from downspout.errors import ConfigError
from downspout.spark.listening import Listener
from downspout.spark.quality import EXAMPLES, check, measures, prepare
from downspout.spark.quality_report import Check, Metrics, Report, evaluate, merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["StreamQuality", "gate"]


class StreamQuality(Listener):
    """The checks of one query, batch by batch and together.

    ::

        quality = StreamQuality(spark, [not_null("carrier")], name="flights")
        query = parquet_stream(quality.observe(stream), "output/carriers").start()
        query.awaitTermination()
        quality.report(query).show()

    Args:
        spark: the session.
        checks: what must hold; :func:`~downspout.spark.quality.unique` cannot be observed.
        name: of the table; one name, one query.
        examples: how many offending rows to keep for each check.
        on_batch: called with each batch's number and report, on Spark's listener thread.

    Raises:
        ConfigError: a check needs a pass of its own.
    """

    def __init__(
        self,
        spark: SparkSession,
        checks: Sequence[Check],
        *,
        name: str = "quality",
        examples: int = EXAMPLES,
        on_batch: Callable[[int, Report], None] | None = None,
    ) -> None:
        for one in checks:
            if one.kind == "unique":
                raise ConfigError(f"{one.name}: a stream cannot be checked for that", cure="gate, or check on a batch")
        self._checks = tuple(checks)
        self._name = name
        self._examples = examples
        self._on_batch = on_batch
        self._batches: dict[tuple[str, int], Metrics] = {}
        super().__init__(spark)

    def observe(self, frame: DataFrame) -> DataFrame:
        """Return the stream with the counting in it; columns and rows are as before.

        Raises:
            ConfigError: a check does not fit the stream.
        """
        prepared = prepare(frame, self._checks)
        return prepared.observe(self._name, *measures(prepared, self._checks, self._examples)).select(*frame.columns)

    def report(self, query: Any = None, timeout_s: float = 30.0) -> Report:
        """Return what was found in all batches that Spark has reported.

        A batch that was repeated after a restart counts once in a process, and in each process anew.

        Args:
            query: a query that has ended: wait until all of its batches are reported.
            timeout_s: how long to wait for that at most.

        Raises:
            TimeoutError: Spark has not reported the query's end in that time.
        """
        if query is not None:
            self.wait(query, timeout_s)
        with self.lock:
            found: Metrics = {"rows": 0, **dict.fromkeys(self._names())}
            for batch in self._batches.values():
                found = merge(found, batch, self._examples)
        return evaluate(self._checks, found, name=self._name)

    def _names(self) -> list[str]:
        rows = [
            f"{what}_{n}" for n, one in enumerate(self._checks) if one.kind == "row" for what in ("failed", "examples")
        ]
        return rows + [f"newest_{number}" for number, one in enumerate(self._checks) if one.kind == "freshness"]

    def progressed(self, progress: Any) -> None:
        """Take the counts of a batch."""
        if (row := progress.observedMetrics.get(self._name)) is None:
            return
        found = row.asDict(recursive=True)
        with self.lock:
            self._batches[str(progress.id), progress.batchId] = found
        if self._on_batch is not None:
            name = f"{self._name}, batch {progress.batchId}"
            self._on_batch(progress.batchId, evaluate(self._checks, found, name=name))


def gate(
    checks: Sequence[Check],
    write: Callable[[DataFrame, int], None],
    *,
    name: str = "",
    on_batch: Callable[[int, Report], None] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes a micro-batch only if no check of severity ``error`` fails.

    An error stops the query before anything of the batch is written, and the checkpoint keeps the batch: it comes
    again at the next start. As always with ``foreachBatch``, a batch may also come again after it was written:
    ``write`` must know it by its number.

    Args:
        checks: what must hold of each batch; ``unique`` means: within the batch.
        write: gets the batch and its number.
        name: of the table.
        on_batch: called with each batch's number and report, before it is written or refused.
    """

    def checked(batch: DataFrame, number: int) -> None:
        batch.persist()
        try:
            report = check(batch, checks, name=f"{name or 'stream'}, batch {number}")
            if on_batch is not None:
                on_batch(number, report)
            report.raise_for_errors()
            write(batch, number)
        finally:
            batch.unpersist()

    return checked
