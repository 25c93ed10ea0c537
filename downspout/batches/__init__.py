"""Batch transactions, as Storm's Trident has them: records in numbered batches, committed strictly in order.

``core`` decides: no I/O, no clock. ``stores`` holds the two ports, ``streams`` what travels between the components.
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "backends.zookeeper": "ZooKeeperMetadata",
        "backends.sql_metadata": "open_sql_metadata",
        "backends.sql_state": "read_state",
        "core.attempt": "Attempt BatchRange CoordinatorState",
        "core.coordinator": "Action Coordinator EmitBatch EmitCommit Store",
        "core.emitter": "EmitterBatches",
        "core.held": "Held",
        "core.values": "Base Commit StateKind",
        "stores": (
            "StaleAttemptError "
            "Key "
            "BatchStore "
            "BatchIdInUseError BatchStoreContext BatchStoreError StaleCoordinatorError StateContext "
            "StateStore open_batch_store open_state_store"
        ),
        "streams": "BATCH COMMIT CONTROL FIELDS SUCCESS",
    },
)
