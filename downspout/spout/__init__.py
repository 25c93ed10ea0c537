"""A spout in its consumer group: assignment, start offsets, reader, emitter, commits, retries, stalls.

To change which partitions are polled, and from which offset: polling.py
To change where a partition starts, and what happens on data loss: starting.py
To change how a record becomes a tuple: tuples.py
To change whether tuples are records or chunks: tuples.py
To change when a record is retried or dead-lettered: emit_records.py
To change how a failed chunk is split: emit_chunks.py
To change when a dead letter is durable: dead_lettering.py
To change what happens before a rebalance: rebalancing.py
To change what happens after a rebalance: assignment.py
To change when a commit is sent: committing.py
To change where offsets are stored outside Kafka: commit_stores.py
To change when a spout's transaction ends: spout_transactions.py
To change which retries stay in memory: cursor.py
To change which records are traced: tracing.py
To change what a spout reports, and when it is stalled: observe.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "assignment": "REFRESH_MS PartitionAssignment share",
        "committing": "commit_acked",
        "cursor": "PartitionCursor RetryCache index_of offset_at",
        "dead_lettering": "DeadLettering",
        "emit_records": "FlushRequests RecordEmitter",
        "findings": "check is_transactional setup_of",
        "partition": "CommitState CrashIsolation Partition STRANGERS_MAX UncleanStarts",
        "ports": "OffsetStore OffsetStoreError SpoutListener SpoutMetrics StaleOwnerError StoreContext StoredOffset "
        "open_store",
        "polling": "PollReader",
        "rebalancing": "TRANSITIONS GroupSession SessionState",
        "settings": "GUARANTEES Identity Setup partitions_named",
        "starting": "StartNotes",
        "spout_transactions": "SpoutTransactions TransactionState",
        "tuples": "CHUNKS SCHEMES choose_mode tuple_maker",
    },
)
