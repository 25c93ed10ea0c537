"""Batch transactions as in Storm's Trident: numbered batches of records, committed strictly in order.

``core`` has the decisions, without I/O or clock; ``core.protocol`` defines the components' messages and ``stores`` the
two ports.

To change which offsets are in a batch and its repetitions (batch ranges): emitting.py
To change how many records a batch has: batch_reader.py
To change where a partition starts in a batch: batch_reader.py
To change when a batch begins and commits: core/coordinator.py
To change how a repeated batch updates a value: core/state_values.py
To change when a late attempt is refused: sql_state.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "zookeeper_metadata": "ZooKeeperMetadata",
        "sql_metadata": "open_sql_metadata",
        "sql_state": "read_state",
        "core.coordinator": "Action Coordinator EmitBatch EmitCommit Store",
        "core.held": "EmitterBatches Held",
        "core.protocol": "BATCH COMMIT CONTROL FIELDS SUCCESS Attempt BatchRange CoordinatorState",
        "core.state_values": "Base Commit StateKind",
        "stores": (
            "StaleAttemptError "
            "Key "
            "BatchStore "
            "BatchIdInUseError BatchStoreContext BatchStoreError StaleCoordinatorError StateContext "
            "StateStore open_batch_store open_state_store"
        ),
    },
)
