"""The one table of figures: what a component counts and measures, under which name and in which unit.

The live view, the summary of a run and the documentation derive from it, and so will exporters.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["METRICS", "Metric"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Attributes:
        name: as in a component's ``report()``.
        kind: ``"counter"`` (only grows) or ``"gauge"``.
        unit: what one of it is.
        help: one sentence.
    """

    name: str
    kind: str
    unit: str
    help: str


# One row, one line: it reads as a table.
# fmt: off
_TABLE = (
    # --- KafkaSpout ---
    Metric("records", "counter", "tuples", "Tuples emitted, retries included; of chunks, their records."),
    Metric("acked", "counter", "tuples", "Tuples whose tree was processed; of chunks, their records."),
    Metric("failed", "counter", "attempts", "Attempts that failed; timeouts are counted apart."),
    Metric("timeouts", "counter", "attempts", "Attempts that timed out; of chunks, their records."),
    Metric("retries", "counter", "tuples", "Tuples emitted again; of chunks, their records."),
    Metric("splits", "counter", "chunks", "Chunks that failed, or timed out too often: tried again in halves, without counting an attempt."),
    Metric("dead_lettered", "counter", "records", "Records written to the dead-letter topic."),
    Metric("filtered", "counter", "records", "Records with a null value, resolved without a tuple."),
    Metric("compacted", "counter", "records", "Failed records that the log's cleaner removed before their retry."),
    Metric("aborted", "counter", "records", "Records of aborted transactions, which no reader sees (read_committed)."),
    Metric("lost", "counter", "offsets", "Offsets that were gone from Kafka before they were processed."),
    Metric("skipped", "counter", "records", "Records fetched that were done or out already: refetched, or done by an earlier owner."),
    Metric("stale", "counter", "ids", "Acks and fails of an earlier assignment or of something unknown; they change nothing."),
    Metric("unclean", "counter", "starts", "Starts of a partition whose last owner did not end in order."),
    Metric("errors", "counter", "errors", "Errors of the client that were retried."),
    Metric("uncommitted", "counter", "records", "Records beyond the last commit when the spout had to stop without another one: they are processed again."),
    Metric("retry_later", "counter", "records", "Failed records that still waited for their retry when the spout stopped: they are processed at the next start."),
    Metric("lag", "gauge", "records", "Offsets between the commit point and the end of the log as of the last fetch; not told before partitions are assigned and all of them were fetched from."),
    Metric("in_flight", "gauge", "tuples", "Tuples that are out; of chunks, their records."),
    Metric("retry_waiting", "gauge", "records", "Failed records that wait for their retry."),
    Metric("committed", "gauge", "offsets", "Sum of the committed offsets of the partitions owned."),
    Metric("partitions", "gauge", "partitions", "Partitions owned."),
    Metric("oldest_pending_s", "gauge", "seconds", "Age of the record that holds a commit back, where it is out."),
    Metric("still_s", "gauge", "seconds", "Longest time for which a partition's commit point has not moved while records wait."),
    Metric("stuck", "gauge", "partitions", "Partitions that stood still for so long that a warning named the offset that blocks."),
    # --- the sinks ---
    Metric("held", "gauge", "rows", "Rows that wait for the next flush."),
)
# fmt: on

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
