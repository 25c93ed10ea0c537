"""A spout in its consumer group: assignment, start offsets, reader, emitter, commits, retries, stalls."""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "assignment": "REFRESH_MS PartitionAssignment share",
        "commits": "commit_acked",
        "crash_isolation": "STRANGERS_MAX CrashIsolation UncleanStarts",
        "cursor": "PartitionCursor RetryCache index_of offset_at",
        "dead_lettering": "DeadLettering",
        "emit_modes": "choose_mode",
        "emit_records": "RecordEmitter",
        "findings": "check is_transactional setup_of",
        "partition": "CommitState Partition",
        "ports": "OffsetStore OffsetStoreError SpoutListener SpoutMetrics StaleOwnerError StoreContext StoredOffset "
        "open_store",
        "reader": "PollReader",
        "services": "FlushRequests",
        "session": "TRANSITIONS GroupSession SessionState",
        "settings": "GUARANTEES Identity Setup partitions_named",
        "starts": "StartNotes",
        "transactions": "SpoutTransactions TransactionState",
        "tuples": "SCHEMES tuple_maker",
    },
)
