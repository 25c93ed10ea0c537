"""Spark's progress where lag tools look: each finished batch's end offsets are committed to a consumer group.

Spark keeps offsets in its checkpoint and commits nothing, so a lag monitor shows nothing. The listener here hears of
every batch that is *finished* (a source's own ``commit`` trails a batch, and never comes for the last one) and commits
exactly its end, for this source and for Spark's JVM connector alike.

>>> lag_of({"sources": [{"description": "KafkaV2[Subscribe[t]]", "endOffset": {"t": {"0": 7}}, "latestOffset":
...     {"t": {"0": 10}}}]})
{TopicPartition(topic='t', partition=0): 3}
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import StreamingQueryListener

from downspout.errors import ConfigError
from downspout.kafka.port import ConsumerPort, TopicPartition, cluster_for
from downspout.spark.committer import Committer
from downspout.spark.source.client_properties import client_properties
from downspout.spark.source.ranges import Offsets, from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = ("KafkaV2[", "PythonMicroBatchStream")
"""What the descriptions of the two Kafka sources hold."""

log = logging.getLogger("downspout.spark")


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
    listener = ProgressCommits(spark, Committer(group, _connector(group, options)), query)
    spark.streams.addListener(listener)
    return listener


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


class ProgressCommits(StreamingQueryListener):
    """Hears of finished batches and hands their ends to a :class:`Committer`. Made by :func:`commit_progress`."""

    def __init__(self, spark: SparkSession, committer: Committer, query: str | None) -> None:
        self._spark = spark
        self._committer = committer
        self._query = query
        self._ends: dict[str, Offsets] = {}

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is finished yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Commit what the batch has finished. Never raises: Spark would go on, but print a page of traceback."""
        try:
            if self._query is None or event.progress.name == self._query:
                self.finished(str(event.progress.id), json.loads(event.progress.json))
        except Exception:
            log.exception("the progress of a query could not be read")

    def onQueryIdle(self, event: Any) -> None:
        """Nothing is finished that was not before."""

    def onQueryTerminated(self, event: Any) -> None:
        """Forget the query: it holds the others back no longer."""
        self._ends.pop(str(event.id), None)

    def finished(self, query: str, progress: Mapping[str, Any]) -> None:
        """Take a progress report; a partition goes as far as the slowest query that reads it."""
        ends = ends_of(progress)
        self._ends[query] = ends
        self._committer.add({tp: min(other.get(tp, end) for other in self._ends.values()) for tp, end in ends.items()})

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until what was heard of is committed; return whether it was in time."""
        return self._committer.flush(timeout_s)

    def close(self) -> None:
        """Hear no more, commit what is left, and release the connection."""
        self._spark.streams.removeListener(self)
        self._committer.close()


def ends_of(progress: Mapping[str, Any]) -> Offsets:
    """Return where a finished batch ended, by partition; sources other than the two for Kafka are left out.

    A partition that two sources of the query read went as far as the slower one.

    Args:
        progress: a query's progress as JSON has it (``query.lastProgress``, or ``json.loads`` of the event's).
    """
    ends: Offsets = {}
    for tp, end in _offsets_of(progress, "endOffset"):
        ends[tp] = min(end, ends.get(tp, end))
    return ends


def lag_of(progress: Mapping[str, Any]) -> Offsets:
    """Return how many offsets each partition still had when a batch was planned, after that batch.

    Args:
        progress: a query's progress, as in :func:`ends_of`.
    """
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
