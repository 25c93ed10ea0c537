"""What Spark reports of streaming queries: how far the event time is, and what came too late for it.

Spark reports a batch, and a query's end, some time after. The events of a query come in order: so a question about a
query that has ended waits for the event of its end.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming import StreamingQueryListener

from downspout.spark.checkpoint import batch_numbers
from downspout.system.signals import handled_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S = 0.5

log = logging.getLogger("downspout.spark")


class Listener(StreamingQueryListener):
    """Listens to the queries of a session until it is closed; base of those that count something."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._ended: set[str] = set()
        self.lock = threading.Condition()
        spark.streams.addListener(self)

    def progressed(self, progress: Any) -> None:
        """Take what Spark reports of a batch; on Spark's listener thread."""

    def wait(self, query: Any, timeout_s: float = 30.0) -> None:
        """Wait for the event of a query's end; raise a TimeoutError if it does not come in that time."""
        with self.lock:
            if not self.lock.wait_for(lambda: str(query.runId) in self._ended, timeout_s):
                raise TimeoutError(
                    f"Spark did not report the end of {query.name or query.runId} within {timeout_s:g} s"
                )

    def close(self) -> None:
        """Stop listening. Where the JVM has ended, there is nothing left to listen to."""
        with suppress(Py4JError, OSError):
            self._spark.streams.removeListener(self)

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is done yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Never raises: Spark would go on, but print a page of traceback."""
        try:
            self.progressed(event.progress)
        except Exception:
            log.exception("the progress of a query could not be used")

    def onQueryIdle(self, event: Any) -> None:
        """Nothing is done that was not before."""

    def onQueryTerminated(self, event: Any) -> None:
        """Wake those that wait."""
        with self.lock:
            self._ended.add(str(event.runId))
            self.lock.notify_all()


class LatestProgress(Listener):
    """Has what Spark reported last of the query of a name."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._name = name
        self.latest: dict[str, Any] | None = None
        super().__init__(spark)

    def progressed(self, progress: Any) -> None:
        """Take it."""
        if progress.name == self._name:
            self.latest = json.loads(progress.json)


class LateRows(Listener):
    """Counts what queries drop because the watermark has passed it.

    Spark adds up within each task before it looks at the watermark, and counts what is left then: late rows of one
    window and key that came in one batch may count once. So this number is at most that of the late rows, and 0 if and
    only if there were none.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._dropped: Counter[str] = Counter()
        super().__init__(spark)

    def progressed(self, progress: Any) -> None:
        """Add up over a query's stateful operators."""
        with self.lock:
            self._dropped[str(progress.runId)] += sum(one.numRowsDroppedByWatermark for one in progress.stateOperators)

    def of(self, query: Any, timeout_s: float = 30.0) -> int:
        """Return how many one run of a query dropped, as far as Spark has reported; of an ended one all.

        Raises:
            TimeoutError: it has ended, and Spark did not report that in time.
        """
        if not query.isActive:
            self.wait(query, timeout_s)
        with self.lock:
            return self._dropped[str(query.runId)]


def wait_until_stopped(*queries: Any) -> bool:
    """Wait until all queries have ended, or until Ctrl-C or SIGTERM; then stop them. To be called in the main thread.

    PySpark's own handler of Ctrl-C talks to Java in the middle of whatever the program was saying to it, and where that
    was ``awaitTermination``, prints pages of traceback. A batch that is under way when a query is stopped comes again.

    Returns:
        Whether a signal came.

    Raises:
        StreamingQueryException: a query failed; the others are stopped.
    """
    received: list[int] = []
    with handled_by(lambda number, _: received.append(number)):
        try:
            for query in queries:
                while not received and not query.awaitTermination(LOOK_S):
                    pass
        finally:
            for query in queries:
                with suppress(Py4JError, OSError):  # the JVM may have ended: the first error says so
                    query.stop()
    return bool(received)


def watermark_of(checkpoint: str | Path) -> datetime | None:
    """Return the watermark of a query's last finished batch: each window that ends by then is written, in append mode.

    Args:
        checkpoint: the query's ``checkpointLocation``.

    Returns:
        None where no batch is finished, or no row with an event time was seen.
    """
    folder = Path(checkpoint)
    if not (finished := batch_numbers(folder / "commits")):
        return None
    _, metadata, *_ = (folder / "offsets" / str(max(finished))).read_text(encoding="utf-8").splitlines()
    milliseconds = json.loads(metadata)["batchWatermarkMs"]
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds) if milliseconds else None
