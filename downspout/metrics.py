"""The one table of metrics: what a component counts or measures, with its name and unit.

The live view, the summary of a run, what Prometheus and OpenTelemetry read and the documentation derive from it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str  # as in a component's ``report()``
    kind: str  # ``"counter"`` (only grows) or ``"gauge"``
    unit: str  # what one of it is
    help: str  # one sentence
    note: str = ""  # what else there is to say
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
    Metric("emitted", "counter", "tuples", "Tuples emitted on any stream, retries included."),
    Metric("executed", "counter", "tuples", "Tuples that a bolt has taken."),
    Metric("busy_s", "counter", "seconds", "Time that a bolt's tasks were at work: on tuples, ticks and flushes.", "Divided by `executed` it is Storm's execute latency, by the time that has passed Storm's capacity."),
    Metric("restarts", "counter", "restarts", "Times that a component was made anew, because it raised: where Storm would start its process again."),
    Metric("queued", "gauge", "tuples", "Tuples that wait for a bolt."),
    # --- KafkaSpout ---
    Metric("records", "counter", "tuples", "Tuples emitted, retries included; for chunks, their records."),
    Metric("acked", "counter", "tuples", "Tuples whose tree is complete, of a bolt those that it acked; for chunks, their records."),
    Metric("failed", "counter", "attempts", "Attempts that failed, of a bolt the tuples that it failed; timeouts are counted separately."),
    Metric("timeouts", "counter", "attempts", "Attempts that timed out; for chunks, their records."),
    Metric("retries", "counter", "tuples", "Tuples emitted again; for chunks, their records."),
    Metric("splits", "counter", "chunks", "Chunks that failed or timed out too often, and are tried again in halves.", "A split counts no attempt."),
    Metric("dead_lettered", "counter", "records", "Records written to the dead-letter topic."),
    Metric("unreadable", "counter", "offsets", "Offsets that were dead-lettered without a whole record: too large, or in a damaged batch."),
    Metric("filtered", "counter", "records", "Records of which a translator or a bolt made no tuple."),
    Metric("compacted", "counter", "records", "Failed records that the log's cleaner removed before their retry."),
    Metric("aborted", "counter", "records", "Records of aborted transactions, which are not read (`read_committed`)."),
    Metric("lost", "counter", "offsets", "Offsets that were gone from Kafka before they were processed."),
    Metric("left_behind", "counter", "offsets", "Offsets that were left out because they lay more than `kafka.behind_max` behind."),
    Metric("skipped", "counter", "records", "Records fetched that were in flight already, or done, also by an earlier owner."),
    Metric("stale", "counter", "ids", "Acks and fails from an earlier assignment, or for an unknown id; they change nothing."),
    Metric("unclean", "counter", "starts", "Starts of a partition whose last owner did not shut down cleanly."),
    Metric("errors", "counter", "errors", "Errors of the client that were retried, of a bolt its exceptions."),
    Metric("commits_failed", "counter", "commits", "Commits that failed, or had no answer in time.", "The next one says where the spout is then; they are among `errors`."),
    Metric("uncommitted", "counter", "records", "Records beyond the last commit when the spout stopped without another commit.", "The next start processes them again."),
    Metric("retry_later", "counter", "records", "Failed records that waited for their retry when the spout stopped.", "The next start processes them."),
    Metric("fetches", "counter", "requests", "Fetch requests that brokers have answered."),
    Metric("fetched", "counter", "records", "Records that polls returned, also those that are read again or skipped."),
    Metric("fetch_mean_s", "gauge", "seconds", "Mean time to the answer of a fetch in the last minute.", "A broker that has nothing waits up to `fetch_max_wait_ms`. Of several tasks the longest is shown."),
    Metric("fetch_max_s", "gauge", "seconds", "Longest time to the answer of a fetch in the last minute."),
    Metric("lag", "gauge", "records", "Offsets between the commit point and the end of the log, as of the last fetch.", "It is missing until partitions are assigned. Of a partition not read yet: as of its start. Of batches: as of the last one."),
    Metric("in_flight", "gauge", "tuples", "Tuples in flight; for chunks, their records."),
    Metric("retry_waiting", "gauge", "records", "Failed records that wait for their retry."),
    Metric("committed", "gauge", "offsets", "Sum of the committed offsets of the partitions owned."),
    Metric("partitions", "gauge", "partitions", "Partitions owned."),
    Metric("assigned", "gauge", "consumers", "Consumers that know which partitions they have.", "One that has none, because there are too few, knows it too."),
    Metric("disconnected", "gauge", "consumers", "Consumers that get no answer from a broker.", "There is no connection, or it hangs. Metrics that come from Kafka, `lag` above all, are as of the last answer."),
    Metric("oldest_pending_s", "gauge", "seconds", "Age of the record that holds back a commit, if it is in flight."),
    Metric("still_s", "gauge", "seconds", "Longest time that a partition's commit point has not moved while records wait."),
    Metric("stuck", "gauge", "partitions", "Partitions for which a stall report has named the offset that blocks."),
    # --- KafkaBolt ---
    Metric("sent", "counter", "records", "Records that the broker has acknowledged."),
    Metric("refused", "counter", "records", "Records that failed: refused, or not acknowledged in time.", "One that was not acknowledged in time may have been written."),
    Metric("unknown", "counter", "records", "Records sent with acks=0, which no broker acknowledges."),
    Metric("retried", "counter", "records", "Records that the producer has sent again: after an error, or because others of their batch were refused.", "Counted when they are answered. `retries` of the spout are tuples."),
    Metric("untopiced", "counter", "tuples", "Tuples without a topic: acked, and not written."),
    Metric("sent_bytes", "counter", "bytes", "Keys and messages handed to the producer."),
    Metric("answer_s", "gauge", "seconds", "Time from the last batch's first record to its answer."),
    Metric("transactions_committed", "counter", "transactions", "Transactions that were committed."),
    Metric("transactions_aborted", "counter", "transactions", "Transactions that were aborted.", "Their records come again."),
    Metric("transactions_fenced", "counter", "transactions", "Transactions that ended because another producer had their id, or because they took too long."),
    Metric("repeated", "counter", "records", "Results that were in the transaction already: late tuples of an earlier try."),
    Metric("discarded", "counter", "records", "Results for which no transaction was open.", "Their records come again."),
    # --- other bolts ---
    Metric("missing", "counter", "records", "LookupBolt: records whose key is not in the table."),
    Metric("incomplete", "counter", "records", "DeadLetterBolt: dead letters that do not hold their whole record."),
    # --- KafkaBatches ---
    Metric("batch_txid", "gauge", "transaction", "The transaction that is committed next."),
    Metric("batches_active", "gauge", "transactions", "Transactions that are processed or committed now."),
    Metric("batches_succeeded", "counter", "transactions", "Transactions that were committed."),
    Metric("batches_failed", "counter", "attempts", "Attempts that failed or timed out.", "With an attempt all later ones are given up; those are not counted."),
    Metric("batch_attempts", "counter", "attempts", "Attempts of transactions that were begun."),
    Metric("batch_s", "gauge", "seconds", "Time from the beginning of the last transaction's last attempt to its success."),
    # --- the sinks ---
    Metric("rows", "counter", "rows", "Rows written."),
    Metric("files", "counter", "files", "Files written."),
    Metric("bytes", "counter", "bytes", "Size of these files."),
    Metric("covered", "counter", "rows", "Rows that were left out, because the directory has them already."),
    Metric("late", "counter", "rows", "Rows that came when all their windows were final."),
    Metric("rejected", "counter", "rows", "Rows that failed, because a value does not go into its column.", "Of the parsers: rows sent to the stream `rejects`."),
    Metric("flushes", "counter", "flushes", "Flushes that wrote something or left it out."),
    Metric("held", "gauge", "rows", "Rows that wait for the next flush."),
    Metric("held_s", "gauge", "seconds", "How long the oldest of them has waited."),
    Metric("away_s", "gauge", "seconds", "How long what a sink writes to has been away, full or locked; 0: it is not."),
    Metric("log_entries", "gauge", "entries", "Length of the directory's commit log.", "All tasks write to one log."),
    # --- StateBolt ---
    Metric("batches_applied", "counter", "commits", "Commits of batches that a state's tasks have applied, one for each task."),
    Metric("batches_refused", "counter", "commits", "Commits that failed in a task: it was restarted meanwhile, or the state could not be written.", "Their batches come again."),
    Metric("keys_updated", "counter", "keys", "Values of keys that were written."),
    # --- each partition of a spout, or of the emitter of batches ---
    Metric("committed", "gauge", "offset", "The next offset to read after a restart, as the broker has it.", "Of batches: where the next one to be committed begins.", of="partition"),
    Metric("position", "gauge", "offset", "The next offset to fetch.", of="partition"),
    Metric("emitted", "gauge", "offset", "The latest offset that was emitted or left out.", of="partition"),
    Metric("begin", "gauge", "offset", "The lowest offset in the log, as of the last fetch.", of="partition"),
    Metric("end", "gauge", "offset", "The end of what the group can see, as of the last fetch.", "`begin` and `end` of batches: as of the last one.", of="partition"),
    Metric("log_records", "gauge", "records", "Offsets between `begin` and `end`.", of="partition"),
    Metric("lag", "gauge", "records", "Offsets between the commit point and `end`.", of="partition"),
    Metric("lag_s", "gauge", "seconds", "Age of the next record to be committed, by its timestamp; 0: there is none.", "It is reckoned between the first and the last record of a poll.", of="partition"),
    Metric("retention_records", "gauge", "records", "Offsets between `begin` and `committed`: so many may be deleted before records are lost.", "Below 0, records are lost.", of="partition"),
    Metric("retention_s", "gauge", "seconds", "Time between the timestamps of the log's first record and of the next one to be committed.", "Asked for once a minute, where there is a lag. Batches do not have it.", of="partition"),
    Metric("fetches", "counter", "requests", "Answers to fetch requests that had news of the partition.", of="partition"),
    Metric("fetched", "counter", "records", "Records that polls returned.", of="partition"),
    Metric("fetch_mean_s", "gauge", "seconds", "Mean time to such an answer in the last minute.", of="partition"),
    Metric("fetch_max_s", "gauge", "seconds", "Longest time to such an answer in the last minute.", of="partition"),
    Metric("done", "gauge", "records", "Offsets beyond the commit point that are done.", of="partition"),
    Metric("uncommitted", "gauge", "records", "Records emitted or filtered and not covered by the commit, done or not.", of="partition"),
    Metric("in_flight", "gauge", "records", "Records that are out.", of="partition"),
    Metric("failed", "gauge", "records", "Failed records that wait for another try.", of="partition"),
    Metric("blocks", "gauge", "offset", "The offset that holds the commit back while others are done or have failed.", of="partition"),
    Metric("why", "gauge", "text", "What that offset waits for.", of="partition"),
    Metric("error", "gauge", "text", "With what it failed last; empty if it has not failed.", of="partition"),
    Metric("cure", "gauge", "text", "What may help.", of="partition"),
    # --- a run: all of its components, tasks and workers ---
    Metric("completed", "counter", "trees", "Tuple trees that are complete.", of="run"),
    Metric("latency_p50_s", "gauge", "seconds", "Median time from a spout's emit to its ack.", of="run"),
    Metric("latency_p99_s", "gauge", "seconds", "The same, 99th percentile.", of="run"),
    Metric("workers", "gauge", "processes", "Workers that are alive (`--workers`).", of="run"),
    Metric("worker_restarts", "counter", "restarts", "Times that workers were restarted.", of="run"),
    Metric("age_s", "gauge", "seconds", "Age of these metrics.", "It grows while one call of a component keeps the loop.", of="run"),
)
# fmt: on

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE if metric.of == "component"}
PARTITION_METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE if metric.of == "partition"}
"""What a spout, or the emitter of batches, reports of each of its partitions (``report_partitions``)."""
RUN_METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE if metric.of == "run"}
"""What there is to say of a run as a whole."""
