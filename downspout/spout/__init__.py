"""A spout in its consumer group: assignment, start offsets, reader, emitter, committer, retries, stalls."""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "dead_lettering": "DeadLettering",
        "emit.schemes": "SCHEMES",
        "group.group_session": "SessionState",
        "hooks": "SpoutListener",
        "offset_store": "OffsetStore OffsetStoreError StaleOwnerError StoreContext StoredOffset open_store",
        "partition": "Partition",
        "setup": "Setup emitted",
        "spout_metrics": "SpoutMetrics",
        "validation": "check",
    },
)
