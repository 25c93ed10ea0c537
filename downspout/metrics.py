"""The table of all metrics, with names and units.

The live view, the summary of a run, the exporters for Prometheus and OpenTelemetry, and the docs derive from it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str  # as in a component's ``report()``
    kind: str  # ``"counter"`` (only grows) or ``"gauge"``
    unit: str  # a plural noun, or ``seconds``, ``bytes``, ``text``
    help: str  # one sentence
    note: str = ""  # further explanation
    of: str = "component"  # or ``"partition"``: as in ``report_partitions()``; or ``"run"``

    @property
    def series(self) -> str:
        """Its name in Prometheus, in base units.

        >>> METRICS["fetch_mean_s"].series, METRICS["rows"].series, PARTITION_METRICS["lag"].series
        ('downspout_fetch_mean_seconds', 'downspout_rows_total', 'downspout_partition_lag')
        """
        scope = "" if self.of == "component" else f"{self.of}_"
        name = f"{self.name.removesuffix('_s')}_seconds" if self.unit == "seconds" else self.name
        return f"downspout_{scope}{name}{'_total' if self.kind == 'counter' else ''}"


# One row, one line: it reads as a table.
# fmt: off
_TABLE = (
    # --- the engine, of each component; KafkaSpout counts acked, failed and errors itself, see below ---
    Metric("emitted", "counter", "tuples", "Tuples emitted on any stream, including retries."),
    Metric("executed", "counter", "tuples", "Tuples that a bolt has received."),
    Metric("busy_s", "counter", "seconds", "Time that a bolt's tasks spent on tuples, ticks and flushes.", "Divided by `executed`, this is Storm's execute latency; divided by the elapsed time, Storm's capacity."),
    Metric("restarts", "counter", "restarts", "Restarts of a component that raised."),
    Metric("queued", "gauge", "tuples", "Tuples that wait for a bolt."),
    # --- KafkaSpout ---
    Metric("records", "counter", "tuples", "Tuples emitted, including retries; for chunks, their records."),
    Metric("acked", "counter", "tuples", "Tuples whose tree is complete, or that a bolt acked; for chunks, their records."),
    Metric("failed", "counter", "attempts", "Attempts that failed, or for a bolt, the tuples that it failed; timeouts are counted separately."),
    Metric("timeouts", "counter", "attempts", "Attempts that timed out; for chunks, their records."),
    Metric("retries", "counter", "tuples", "Tuples emitted again; for chunks, their records."),
    Metric("splits", "counter", "chunks", "Chunks that failed and are retried in halves.", "A split does not count as an attempt."),
    Metric("dead_lettered", "counter", "records", "Records written to the dead-letter topic."),
    Metric("unreadable", "counter", "offsets", "Offsets dead-lettered without a whole record: too large, or in a damaged batch."),
    Metric("filtered", "counter", "records", "Records for which a translator or bolt made no tuple."),
    Metric("compacted", "counter", "records", "Failed records that log compaction removed before their retry."),
    Metric("aborted", "counter", "records", "Records of aborted transactions, which are skipped (`read_committed`)."),
    Metric("lost", "counter", "offsets", "Offsets that were gone from Kafka before they were processed."),
    Metric("left_behind", "counter", "offsets", "Offsets dropped because they lay more than `kafka.behind_max` behind."),
    Metric("skipped", "counter", "records", "Fetched records that were already in flight or done."),
    Metric("stale", "counter", "ids", "Acks and fails from an earlier assignment or with an unknown id, which are ignored."),
    Metric("unclean", "counter", "starts", "Starts of a partition whose last owner did not stop cleanly."),
    Metric("errors", "counter", "errors", "Client errors that were retried; exceptions of a bolt."),
    Metric("commits_failed", "counter", "commits", "Commits that failed or had no answer in time.", "They are included in `errors`; the next commit makes up for them."),
    Metric("uncommitted", "counter", "records", "Records beyond the last commit when the spout stopped without another commit.", "The next start processes them again."),
    Metric("retry_later", "counter", "records", "Failed records whose retry was pending when the spout stopped.", "The next start processes them."),
    Metric("fetches", "counter", "requests", "Fetch requests that brokers answered."),
    Metric("fetched", "counter", "records", "Records that polls returned, including repeated and skipped ones."),
    Metric("fetch_mean_s", "gauge", "seconds", "Mean response time of fetches in the last minute.", "A broker without new records waits up to `fetch_max_wait_ms`. With several tasks, the longest mean is shown."),
    Metric("fetch_max_s", "gauge", "seconds", "Longest response time of a fetch in the last minute."),
    Metric("lag", "gauge", "records", "Offsets between the commit point and the end of the log, as of the last fetch.", "Missing until partitions are assigned. For a partition not read yet: as of its start. For batches: as of the last batch."),
    Metric("in_flight", "gauge", "tuples", "Tuples in flight; for chunks, their records."),
    Metric("retry_waiting", "gauge", "records", "Failed records that wait for a retry."),
    Metric("committed", "gauge", "offsets", "Sum of the committed offsets of the partitions owned."),
    Metric("partitions", "gauge", "partitions", "Partitions owned."),
    Metric("assigned", "gauge", "consumers", "Consumers that know their partitions, even if they have none."),
    Metric("disconnected", "gauge", "consumers", "Consumers without an answer from a broker.", "Meanwhile, metrics from Kafka, such as `lag`, have the values of the last answer."),
    Metric("oldest_pending_s", "gauge", "seconds", "Age of the record that holds back a commit, if it is in flight."),
    Metric("still_s", "gauge", "seconds", "Longest time that a partition's commit point has not moved while records wait."),
    Metric("stuck", "gauge", "partitions", "Partitions for which a stall report has named the blocking offset."),
    # --- KafkaBolt ---
    Metric("sent", "counter", "records", "Records that the broker acknowledged."),
    Metric("refused", "counter", "records", "Records that were refused, or not acknowledged in time.", "Unacknowledged records may have been written."),
    Metric("unknown", "counter", "records", "Records sent with acks=0, which no broker acknowledges."),
    Metric("retried", "counter", "records", "Records that the producer sent again.", "Counted when the broker answers. The spout's `retries` counts tuples."),
    Metric("untopiced", "counter", "tuples", "Tuples without a topic, which are acked and not written."),
    Metric("sent_bytes", "counter", "bytes", "Bytes of keys and values handed to the producer."),
    Metric("answer_s", "gauge", "seconds", "Time from the last batch's first record to its answer."),
    Metric("transactions_committed", "counter", "transactions", "Transactions committed."),
    Metric("transactions_aborted", "counter", "transactions", "Transactions aborted; their records are processed again."),
    Metric("transactions_fenced", "counter", "transactions", "Transactions ended because another producer took their id, or because they took too long."),
    Metric("repeated", "counter", "records", "Results that the transaction already contained."),
    Metric("discarded", "counter", "records", "Results without an open transaction; their records are processed again."),
    # --- other bolts ---
    Metric("missing", "counter", "records", "LookupBolt: records whose key is not in the table."),
    Metric("incomplete", "counter", "records", "DeadLetterBolt: dead letters without their whole record."),
    # --- KafkaBatches ---
    Metric("batch_txid", "gauge", "transaction", "The transaction that commits next."),
    Metric("batches_active", "gauge", "transactions", "Transactions in progress."),
    Metric("batches_succeeded", "counter", "transactions", "Transactions committed."),
    Metric("batches_failed", "counter", "attempts", "Attempts that failed or timed out.", "Later attempts that were abandoned with them are not counted."),
    Metric("batch_attempts", "counter", "attempts", "Attempts started."),
    Metric("batch_s", "gauge", "seconds", "Time from the start of the last transaction's last attempt to its success."),
    # --- the sinks ---
    Metric("rows", "counter", "rows", "Rows written."),
    Metric("files", "counter", "files", "Files written."),
    Metric("bytes", "counter", "bytes", "Size of these files."),
    Metric("covered", "counter", "rows", "Rows dropped because the directory already has them."),
    Metric("late", "counter", "rows", "Rows that arrived after all their windows were final."),
    Metric("rejected", "counter", "rows", "Rows with a value that does not fit its column.", "For parsers: rows sent to the stream `rejects`."),
    Metric("flushes", "counter", "flushes", "Flushes that wrote or dropped rows."),
    Metric("held", "gauge", "rows", "Rows that wait for the next flush."),
    Metric("held_s", "gauge", "seconds", "How long the oldest of them has waited."),
    Metric("away_s", "gauge", "seconds", "How long a sink's target has been unavailable, full or locked; 0: it is available."),
    Metric("log_entries", "gauge", "entries", "Length of the directory's commit log, which all tasks share."),
    # --- StateBolt ---
    Metric("batches_applied", "counter", "commits", "Commits applied by a state's tasks, one per task."),
    Metric("batches_refused", "counter", "commits", "Commits that failed in a task; their batches are repeated."),
    Metric("keys_updated", "counter", "keys", "Values of keys written."),
    # --- each partition of a spout, or of the emitter of batches ---
    Metric("committed", "gauge", "offset", "The next offset to read after a restart, as the broker has it.", "For batches: where the next batch to be committed begins.", of="partition"),
    Metric("position", "gauge", "offset", "The next offset to fetch.", of="partition"),
    Metric("emitted", "gauge", "offset", "The latest offset that was emitted or skipped.", of="partition"),
    Metric("begin", "gauge", "offset", "The lowest offset in the log, as of the last fetch.", of="partition"),
    Metric("end", "gauge", "offset", "The end of what the group can see, as of the last fetch.", "`begin` and `end` for batches: as of the last batch.", of="partition"),
    Metric("log_records", "gauge", "records", "Offsets between `begin` and `end`.", of="partition"),
    Metric("lag", "gauge", "records", "Offsets between the commit point and `end`.", of="partition"),
    Metric("lag_s", "gauge", "seconds", "Age of the next record to be committed, by its timestamp; 0: none.", "Interpolated between the first and last record of a poll.", of="partition"),
    Metric("retention_records", "gauge", "records", "Offsets between `begin` and `committed`: this many may be deleted before records are lost.", "Negative: records are lost.", of="partition"),
    Metric("retention_s", "gauge", "seconds", "Time between the log's first record and the next one to be committed.", "Requested once a minute if there is a lag; not for batches.", of="partition"),
    Metric("fetches", "counter", "requests", "Answers to fetch requests with news of the partition.", of="partition"),
    Metric("fetched", "counter", "records", "Records that polls returned.", of="partition"),
    Metric("fetch_mean_s", "gauge", "seconds", "Mean response time of these fetches in the last minute.", of="partition"),
    Metric("fetch_max_s", "gauge", "seconds", "Longest response time of these fetches in the last minute.", of="partition"),
    Metric("done", "gauge", "records", "Offsets beyond the commit point that are done.", of="partition"),
    Metric("uncommitted", "gauge", "records", "Records emitted or filtered and not covered by the commit, done or not.", of="partition"),
    Metric("in_flight", "gauge", "records", "Records in flight.", of="partition"),
    Metric("failed", "gauge", "records", "Failed records that wait for another try.", of="partition"),
    Metric("blocks", "gauge", "offset", "The offset that holds the commit back while later ones are done or have failed.", of="partition"),
    Metric("why", "gauge", "text", "What that offset waits for.", of="partition"),
    Metric("error", "gauge", "text", "The last error of that offset; empty if it has not failed.", of="partition"),
    Metric("cure", "gauge", "text", "A hint.", of="partition"),
    # --- a run: all of its components, tasks and workers ---
    Metric("completed", "counter", "trees", "Complete tuple trees.", of="run"),
    Metric("latency_p50_s", "gauge", "seconds", "Median time from a spout's emit to its ack.", of="run"),
    Metric("latency_p99_s", "gauge", "seconds", "99th percentile of the same.", of="run"),
    Metric("workers", "gauge", "processes", "Workers that are alive (`--workers`).", of="run"),
    Metric("worker_restarts", "counter", "restarts", "Restarts of workers.", of="run"),
    Metric("age_s", "gauge", "seconds", "Age of these metrics.", of="run"),
)
# fmt: on

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE if metric.of == "component"}
PARTITION_METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE if metric.of == "partition"}
"""Metrics of each partition, from a spout's or batch emitter's ``report_partitions``."""
RUN_METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE if metric.of == "run"}
"""Metrics of the whole run."""
