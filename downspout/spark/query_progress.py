"""What Spark reports of streaming queries: how far the event time is, and what came too late for it.

Spark reports a batch, and a query's end, some time after. The events of a query come in order: so a question about a
query that has ended waits for the event of its end.

**Commits for lag tools.** Each finished batch's end offsets are committed to a consumer group. Spark keeps offsets in
its checkpoint and commits nothing, so a lag monitor shows nothing. The listener here takes every batch that is
*finished* (a source's own ``commit`` trails a batch, and never comes for the last one) and commits exactly its end, for
this source and for Spark's JVM connector alike.

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


class LatestProgress(QueryListener):
    """Has what Spark reported last of the query of a name."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._name = name
        self.latest: dict[str, Any] | None = None
        super().__init__(spark)

    def progressed(self, progress: Any) -> None:
        """Take it."""
        if progress.name == self._name:
            self.latest = json.loads(progress.json)


class LateRows(QueryListener):
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


# --- commits for lag tools ---

KINDS = ("KafkaV2[", "PythonMicroBatchStream")  # What the descriptions of the two Kafka sources hold

BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 30.0


def commit_progress(
    spark: SparkSession, group: str, options: Mapping[str, str], *, query: str | None = None
) -> ProgressCommits:
    """Commit the progress of streaming queries to a consumer group from now on.

    Nothing must consume in that group: Kafka refuses commits from outside while it has members.

    Args:
        spark: the session whose queries are meant.
        group: the consumer group.
        options: the source's ``kafka.…`` options: ``kafka.bootstrap.servers`` and what is needed to get in.
        query: the name of the one query that is meant; None: all of the session. Where several of them read the
            same partition, what all of them have finished is committed.

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
    """Hands the ends of finished batches to a :class:`Committer`. Made by :func:`commit_progress`."""

    def __init__(self, spark: SparkSession, committer: Committer, query: str | None) -> None:
        self._committer = committer
        self._query = query
        self._ends: dict[str, Offsets] = {}
        super().__init__(spark)

    def progressed(self, progress: Any) -> None:
        """Commit what the batch has finished."""
        if self._query is None or progress.name == self._query:
            self.finished(str(progress.id), json.loads(progress.json))

    def onQueryTerminated(self, event: Any) -> None:
        """Forget the query: it holds the others back no longer."""
        super().onQueryTerminated(event)
        self._ends.pop(str(event.id), None)

    def finished(self, query: str, progress: Mapping[str, Any]) -> None:
        """Take a progress report; a partition goes as far as the slowest query that reads it."""
        ends = ends_of(progress)
        self._ends[query] = ends
        self._committer.add({tp: min(other.get(tp, end) for other in self._ends.values()) for tp, end in ends.items()})

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all that is finished is committed; return whether it was in time."""
        return self._committer.flush(timeout_s)

    def close(self) -> None:
        """Commit what is left, and release the connection."""
        super().close()
        self._committer.close()


def ends_of(progress: Mapping[str, Any]) -> Offsets:
    """Return where a finished batch ended, by partition; sources other than the two for Kafka are left out.

    A partition that two sources of the query read went as far as the slower one. ``progress`` is a query's, as JSON has
    it (``query.lastProgress``, or ``json.loads`` of the event's).
    """
    ends: Offsets = {}
    for tp, end in _offsets_of(progress, "endOffset"):
        ends[tp] = min(end, ends.get(tp, end))
    return ends


def lag_of(progress: Mapping[str, Any]) -> Offsets:
    """Return how many offsets each partition still had, after a batch, when that was planned (see :func:`ends_of`)."""
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
        except ConfigError:  # another source in Python
            log.debug("%s is not Kafka's", source["description"])
    return found


class Committer:
    """One group's commits, in a thread of its own: newest first, never backwards; nothing waits or fails for them."""

    def __init__(self, group: str, connect: Callable[[], ConsumerPort], backoff_s: float = BACKOFF_S_MIN) -> None:
        self._group = group
        self._connect = connect
        self._backoff_s = backoff_s
        self._consumer: ConsumerPort | None = None  # the thread's alone
        self._changed = threading.Condition()
        self._wanted: Offsets = {}
        self._done: Offsets = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"commits-{group}", daemon=True)
        self._thread.start()

    def add(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these soon; an offset below an earlier one of its partition changes nothing. Never waits."""
        with self._changed:
            for tp, offset in offsets.items():
                self._wanted[tp] = max(offset, self._wanted.get(tp, 0))
            self._changed.notify_all()

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all is committed that was added before; return whether it was in time."""
        with self._changed:
            wanted = dict(self._wanted)
            return self._changed.wait_for(
                lambda: all(self._done.get(tp, -1) >= offset for tp, offset in wanted.items()), timeout_s
            )

    def close(self, timeout_s: float = 10.0) -> None:
        """Commit what is left, for at most so long, and end the thread."""
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
            except Exception as error:  # a lag tool that shows old numbers is no reason to stop anything
                failures += 1
                wait_s = min(self._backoff_s * 2 ** min(failures - 1, 10), BACKOFF_S_MAX)
                log.warning("group %s: commit failed, again in %.0f s: %s", self._group, wait_s, error)
                self._release()
                self._pause(wait_s)
        self._release()

    def _next(self) -> Offsets | None:
        """Wait for something to commit and return it; None at the end."""
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
