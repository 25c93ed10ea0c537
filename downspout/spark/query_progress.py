"""Spark's progress reports of streaming queries: watermarks, late rows, commits for lag tools.

Spark reports a batch, and a query's end, with some delay, but the events of a query arrive in order. So methods that
need all reports of an ended query wait for the event of its end.

**Commits for lag tools.** Spark keeps offsets in its checkpoint and commits nothing, so a lag monitor shows nothing.
The listener here commits the end offsets of each *finished* batch to a consumer group, exactly, for this source and for
Spark's JVM connector. (A source's own ``commit`` trails a batch and is never called for the last one.)

>>> lag_of({"sources": [{"description": "KafkaV2[Subscribe[t]]", "endOffset": {"t": {"0": 7}}, "latestOffset":
...     {"t": {"0": 10}}}]})
{TopicPartition(topic='t', partition=0): 3}
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming import StreamingQueryListener

from downspout.errors import ConfigError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.spark.checkpoint import batch_numbers
from downspout.spark.kafka_options import client_properties
from downspout.spark.source_offsets import Offsets, from_json
from downspout.system.process import handled_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S = 0.5

log = logging.getLogger("downspout.spark")


class QueryListener(StreamingQueryListener):
    """Base class: listens to the queries of a session until it is closed."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._ended: set[str] = set()
        self.lock = threading.Condition()
        spark.streams.addListener(self)

    def progressed(self, progress: Any) -> None:
        """Process the report of a batch, on Spark's listener thread."""

    def wait(self, query: Any, timeout_s: float = 30.0) -> None:
        """Wait for the event of a query's end. Raises TimeoutError: it does not arrive in time."""
        with self.lock:
            if not self.lock.wait_for(lambda: str(query.runId) in self._ended, timeout_s):
                raise TimeoutError(
                    f"Spark did not report the end of {query.name or query.runId} within {timeout_s:g} s"
                )

    def close(self) -> None:
        """Stop listening; without effect if the JVM has ended."""
        with suppress(Py4JError, OSError):
            self._spark.streams.removeListener(self)

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Call :meth:`progressed` and log its errors, for which Spark would print a page of traceback."""
        try:
            self.progressed(event.progress)
        except Exception:
            log.exception("the progress of a query could not be used")

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Wake the waiting threads."""
        with self.lock:
            self._ended.add(str(event.runId))
            self.lock.notify_all()


class LatestProgress(QueryListener):
    """The last report of a query, by name."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._name = name
        self.latest: dict[str, Any] | None = None
        super().__init__(spark)

    def progressed(self, progress: Any) -> None:
        """Keep the report if it is of the query."""
        if progress.name == self._name:
            self.latest = json.loads(progress.json)


class LateRows(QueryListener):
    """Counts the rows that queries drop because they are below the watermark.

    Spark aggregates within each task before it applies the watermark, so late rows with the same window and key in one
    batch may count once. The count never exceeds the number of late rows, and is 0 if and only if there were none.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._dropped: Counter[str] = Counter()
        super().__init__(spark)

    def progressed(self, progress: Any) -> None:
        """Add the counts of a query's stateful operators."""
        with self.lock:
            self._dropped[str(progress.runId)] += sum(one.numRowsDroppedByWatermark for one in progress.stateOperators)

    def of(self, query: Any, timeout_s: float = 30.0) -> int:
        """Return the number of rows dropped by a run of a query, so far reported; complete if it has ended.

        Raises:
            TimeoutError: it has ended, and Spark did not report that in time.
        """
        if not query.isActive:
            self.wait(query, timeout_s)
        with self.lock:
            return self._dropped[str(query.runId)]


def wait_until_stopped(*queries: Any) -> bool:
    """Wait until all queries have ended, one fails, or Ctrl-C or SIGTERM; then stop them. Call it in the main thread.

    PySpark's own handler of Ctrl-C calls Java in the middle of other calls, and prints pages of traceback if that is
    ``awaitTermination``. A batch in progress when its query is stopped is computed again at the next start.

    Returns:
        Whether a signal arrived.

    Raises:
        StreamingQueryException: a query failed; the others are stopped.
    """
    received: list[int] = []
    running = list(queries)
    with handled_by(lambda number, _: received.append(number)):
        try:
            while running and not received:
                running = [query for query in running if not query.awaitTermination(LOOK_S / len(running))]
        finally:
            for query in queries:
                with suppress(Py4JError, OSError):  # the JVM may have ended; the first error reports it
                    query.stop()
    return bool(received)


def watermark_of(checkpoint: str | Path) -> datetime | None:
    """Return the watermark of a query's last finished batch; in append mode, all windows up to it are written.

    Args:
        checkpoint: the query's ``checkpointLocation``.

    Returns:
        None if no batch is finished or no row had an event time.
    """
    folder = Path(checkpoint)
    if not (finished := batch_numbers(folder / "commits")):
        return None
    _, metadata, *_ = (folder / "offsets" / str(max(finished))).read_text(encoding="utf-8").splitlines()
    milliseconds = json.loads(metadata)["batchWatermarkMs"]
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds) if milliseconds else None


# --- commits for lag tools ---

KINDS = ("KafkaV2[", "PythonMicroBatchStream")  # Parts of the descriptions of the two Kafka sources

BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 30.0


def commit_progress(
    spark: SparkSession, group: str, options: Mapping[str, str], *, query: str | None = None
) -> ProgressCommits:
    """Commit the progress of streaming queries to a consumer group from now on.

    The group must have no members: Kafka would reject these commits.

    Args:
        spark: the session of the queries.
        group: the consumer group.
        options: the source's ``kafka.…`` options: ``kafka.bootstrap.servers`` and those for authentication.
        query: the name of one query; None: all of the session. If several of them read a partition, the lowest of their
            offsets is committed.

    Returns:
        The listener; ``flush`` waits for its commits, ``close`` ends it.

    Raises:
        ConfigError: an option is unknown or malformed.
    """
    return ProgressCommits(spark, Committer(group, _connector(group, options)), query)


def _connector(group: str, options: Mapping[str, str]) -> Any:
    properties = {name.lower()[6:]: value for name, value in options.items() if name.lower().startswith("kafka.")}
    bootstrap = properties.pop("bootstrap.servers", "")
    if not group or not bootstrap:
        raise ConfigError(
            f"{'kafka.bootstrap.servers' if group else 'the group'} is missing",
            cure='commit_progress(spark, "group", {"kafka.bootstrap.servers": "host:9092"})',
        )
    client = client_properties(properties)

    def connect() -> ConsumerPort:
        return cluster_for(bootstrap, client).consumer(group=group, client=client)

    return connect


class ProgressCommits(QueryListener):
    """Passes the ends of finished batches to a :class:`Committer`. Created by :func:`commit_progress`."""

    def __init__(self, spark: SparkSession, committer: Committer, query: str | None) -> None:
        self._committer = committer
        self._query = query
        self._ends: dict[str, Offsets] = {}
        super().__init__(spark)

    def progressed(self, progress: Any) -> None:
        """Commit the end of the batch."""
        if self._query is None or progress.name == self._query:
            self.finished(str(progress.id), json.loads(progress.json))

    def onQueryTerminated(self, event: Any) -> None:
        """Forget the query, so that it no longer limits the others."""
        super().onQueryTerminated(event)
        self._ends.pop(str(event.id), None)

    def finished(self, query: str, progress: Mapping[str, Any]) -> None:
        """Process a progress report; the slowest query that reads a partition counts."""
        ends = ends_of(progress)
        self._ends[query] = ends
        self._committer.add({tp: min(other.get(tp, end) for other in self._ends.values()) for tp, end in ends.items()})

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all finished batches are committed; return whether that happened in time."""
        return self._committer.flush(timeout_s)

    def close(self) -> None:
        """Commit the rest and release the connection."""
        super().close()
        self._committer.close()


def ends_of(progress: Mapping[str, Any]) -> Offsets:
    """Return the end of a finished batch by partition, without sources other than the two for Kafka.

    If two sources of the query read a partition, the lower end counts. ``progress`` is ``query.lastProgress``, or the
    parsed JSON of the event's.
    """
    ends: Offsets = {}
    for tp, end in _offsets_of(progress, "endOffset"):
        ends[tp] = min(end, ends.get(tp, end))
    return ends


def lag_of(progress: Mapping[str, Any]) -> Offsets:
    """Return each partition's remaining offsets after a batch, as of its planning (see :func:`ends_of`)."""
    ends = ends_of(progress)
    latest = dict(_offsets_of(progress, "latestOffset"))
    return {tp: max(latest[tp] - end, 0) for tp, end in ends.items() if tp in latest}


def _offsets_of(progress: Mapping[str, Any], field: str) -> list[tuple[TopicPartition, int]]:
    found: list[tuple[TopicPartition, int]] = []
    for source in progress["sources"]:
        value = source.get(field)
        if isinstance(value, str):
            value = json.loads(value)
        if value is None or not any(kind in source["description"] for kind in KINDS):
            continue
        try:
            found += from_json(value).items()
        except ConfigError:  # another Python source
            log.debug("%s is not Kafka's", source["description"])
    return found


class Committer:
    """Commits for one group in a background thread: only the newest offsets, never backwards; errors are only
    logged."""

    def __init__(self, group: str, connect: Callable[[], ConsumerPort], backoff_s: float = BACKOFF_S_MIN) -> None:
        self._group = group
        self._connect = connect
        self._backoff_s = backoff_s
        self._consumer: ConsumerPort | None = None  # used only by the thread
        self._changed = threading.Condition()
        self._wanted: Offsets = {}
        self._done: Offsets = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"commits-{group}", daemon=True)
        self._thread.start()

    def add(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Schedule a commit without waiting; an offset below an earlier one of its partition has no effect."""
        with self._changed:
            for tp, offset in offsets.items():
                self._wanted[tp] = max(offset, self._wanted.get(tp, 0))
            self._changed.notify_all()

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all offsets added so far are committed; return whether that happened in time."""
        with self._changed:
            wanted = dict(self._wanted)
            return self._changed.wait_for(
                lambda: all(self._done.get(tp, -1) >= offset for tp, offset in wanted.items()), timeout_s
            )

    def close(self, timeout_s: float = 10.0) -> None:
        """Commit the rest within ``timeout_s`` and end the thread."""
        self.flush(timeout_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        failures = 0
        while (offsets := self._next()) is not None:
            try:
                self._commit(offsets)
                failures = 0
            except Exception as error:  # outdated figures in a lag tool must not stop anything
                failures += 1
                wait_s = min(self._backoff_s * 2 ** min(failures - 1, 10), BACKOFF_S_MAX)
                log.warning("group %s: commit failed, again in %.0f s: %s", self._group, wait_s, error)
                self._release()
                self._pause(wait_s)
        self._release()

    def _next(self) -> Offsets | None:
        """Wait for offsets to commit and return them; None after :meth:`close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wanted != self._done)
            if self._closed:
                return None
            return {tp: offset for tp, offset in self._wanted.items() if self._done.get(tp) != offset}

    def _commit(self, offsets: Offsets) -> None:
        if self._consumer is None:
            self._consumer = self._connect()
        there = self._consumer.committed(list(offsets))
        ahead = {
            tp: OffsetAndMetadata(offset, "", -1)
            for tp, offset in offsets.items()
            if (found := there.get(tp)) is None or found.offset < offset
        }
        if ahead:
            self._consumer.commit(ahead)
        with self._changed:
            self._done |= offsets
            self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: self._closed, max(until - time.monotonic(), 0))

    def _release(self) -> None:
        consumer, self._consumer = self._consumer, None
        try:
            if consumer is not None:
                consumer.close()
        except Exception as error:
            log.warning("group %s: closing: %s", self._group, error)
