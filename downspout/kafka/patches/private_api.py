"""The private names of kafka-python that the patches use, and their types; checked for each client."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import kafka
from kafka.net.transport import KafkaSSLTransport
from kafka.producer.producer_batch import ProducerBatch
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.legacy_records import LegacyRecordBatch
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.structs import TopicPartition

from downspout.errors import BrokerError

CURE = '`pip install "kafka-python>=3.0.9,<3.1"`'
FORMAT = 2  # The message format, which brokers support since 0.11

CONSUMER = {
    "_cluster.add_topic": "method",
    "_cluster.config": "dict",
    "_cluster.leader_for_partition": "method",
    "_cluster.request_update": "method",
    "_coordinator._assignment_snapshot": "NoneType",
    "_coordinator._build_metadata_snapshot": "method",
    "_coordinator._client.is_ready": "method",
    "_coordinator._cluster": "ClusterMetadata",
    "_coordinator._handle_heartbeat_response": "method",
    "_coordinator._handle_offset_fetch_response": "method",
    "_coordinator._join_task": "NoneType",
    "_coordinator._manager": "KafkaConnectionManager",
    "_coordinator._metadata_snapshot": "dict",
    "_coordinator._perform_assignment": "method",
    "_coordinator._process_join_group_response": "method",
    "_coordinator._rebalance_protocol": "RebalanceProtocol",
    "_coordinator._subscription": "SubscriptionState",
    "_coordinator.coordinator_id": "NoneType",
    "_coordinator.ensure_active_group": "method",
    "_coordinator.fetch_committed_offsets": "method",
    "_coordinator.is_dynamic_member": "method",
    "_coordinator.maybe_leave_group_async": "method",
    "_coordinator.need_rejoin": "method",
    "_coordinator.rejoining": "bool",
    "_coordinator.request_rejoin": "method",
    "_coordinator.reset_generation": "method",
    "_fetcher.PartitionRecords._is_batch_aborted": "function",
    "_fetcher.PartitionRecords.take": "function",
    "_fetcher._handle_fetch_response": "method",
    "_fetcher._next_partition_records": "NoneType",
    "_fetcher._paused_partition_records": "dict",
    "_fetcher._reset_offset_if_needed": "method",
    "_fetcher.config": "dict",
    "_manager._backoff": "dict",
    "_manager._conns": "dict",
    "_manager._net.call_later": "method",
    "_manager._net.sleep": "method",
    "_manager.call_soon": "method",
    "_manager.cluster._coordinator_brokers": "dict",
    "_manager.cluster._coordinators": "dict",
    "_manager.cluster.brokers": "method",
    "_manager.cluster.is_bootstrap": "method",
    "_manager.cluster.partitions_for_broker": "method",
    "_manager.cluster.request_update": "method",
    "_manager.connection_delay": "method",
    "_manager.get_connection": "function",  # Replaced by then (``prefer_brokers_that_answer``)
    "_manager.least_loaded_node": "function",  # Likewise
    "_manager.least_used_connections": "method",
    "_manager.run": "method",
    "_manager.send": "method",
    "_manager.socket_connection_setup_timeout_ms": "method",
    "_manager.wait_for": "method",
    "_subscription.has_valid_position": "method",
    "_subscription.position": "method",
}
"""Attributes of a consumer, as paths from it."""

PRODUCER = {
    "producer._accumulator._appends_in_progress.increment": "method",
    "producer._accumulator._batches": "defaultdict",
    "producer._accumulator._closed": "bool",
    "producer._accumulator._flushes_in_progress.decrement": "method",
    "producer._accumulator._incomplete.add": "method",
    "producer._accumulator._tp_lock": "method",
    "producer._accumulator.begin_flush": "method",
    "producer._accumulator.config": "dict",
    "producer._closed": "bool",
    "producer._metadata._last_successful_refresh_ms": "float",
    "producer._metadata._partitions": "dict",
    "producer._metadata.available_partitions_for_topic": "method",
    "producer._metadata.config": "dict",
    "producer._metadata.request_update": "method",
    "producer._metadata.unauthorized_topics": "set",
    "producer._sender._dispatch_error": "method",
    "producer._sender.add_topic": "method",
    "producer._sender.force_close": "method",
    "producer._sender.join": "method",
    "producer._sender.wakeup": "method",
    "producer._wait_on_metadata": "method",
    "producer.config": "dict",
    "batch._record_futures": "list",
    "batch.attempts": "int",
    "batch.produce_future._add_cb_eb": "method",
    "batch.records._builder._buffer": "bytearray",
    "batch.records._builder._first_timestamp": "NoneType",
    "batch.records._builder._last_offset": "int",
    "batch.records._builder._max_timestamp": "NoneType",
    "batch.records._builder._num_records": "int",
    "batch.records._next_offset": "int",
}
"""Attributes of a producer, and of an empty batch."""

IDEMPOTENT = {
    "producer._accumulator.abort_undrained_batches": "method",
    "producer._transaction_manager.ERROR_CLASS_ABORTABLE": "str",
    "producer._transaction_manager.ERROR_CLASS_FATAL": "str",
    "producer._transaction_manager.ERROR_CLASS_NEEDS_EPOCH_BUMP": "str",
    "producer._transaction_manager.ERROR_CLASS_NEEDS_PRODUCER_ID_RESET": "str",
    "producer._transaction_manager.ERROR_CLASS_RETRIABLE": "str",
    "producer._transaction_manager._current_state": "TransactionState",
    "producer._transaction_manager._enqueue_request": "method",
    "producer._transaction_manager._supports_epoch_bump": "method",
    "producer._transaction_manager.bump_producer_id_and_epoch": "method",
    "producer._transaction_manager.classify_batch_error": "method",
    "producer._transaction_manager.has_fatal_error": "method",
    "producer._transaction_manager.is_transactional": "method",
    "producer._transaction_manager.reset_producer_id": "method",
    "producer._transaction_manager.set_sequence_number": "method",
    "batch.has_sequence": "bool",
    "batch.in_retry": "method",
}
"""Further attributes of an idempotent producer."""

TRANSACTIONAL = {
    "producer._transaction_manager.begin_abort": "method",
    "producer._transaction_manager.begin_commit": "method",
    "producer._transaction_manager.begin_transaction": "method",
    "producer._transaction_manager.has_abortable_error": "method",
    "producer._transaction_manager.maybe_add_partition_to_transaction": "method",
    "producer._transaction_manager.producer_id_and_epoch": "ProducerIdAndEpoch",
    "producer._transaction_manager.send_offsets_to_transaction": "method",
}
"""Further attributes of a transactional producer."""

CLASSES = {
    "MemoryRecords._buffer": "member_descriptor",
    "DefaultRecordBatch._buffer": "member_descriptor",
    "DefaultRecordBatch._decompressed": "member_descriptor",
    "DefaultRecordBatch._num_records": "member_descriptor",
    "DefaultRecordBatch._pos": "member_descriptor",
    "DefaultRecordBatch._read_msg": "function",
    "LegacyRecordBatch._buffer": "member_descriptor",
    "LegacyRecordBatch._decompress": "function",
    "LegacyRecordBatch._magic": "member_descriptor",
    "LegacyRecordBatch._read_key_value": "function",
}
"""Attributes of the client's batches."""

TLS = {"KafkaSSLTransport._build_ssl_context": "function"}
"""Needed for TLS only."""

OPTIONAL = {
    "Fetcher.PartitionRecords._consume_aborted_transactions_up_to": "function",
    "Fetcher.PartitionRecords._contains_abort_marker": "function",
    "Fetcher.PartitionRecords._is_batch_aborted": "function",
    "Fetcher.PartitionRecords._maybe_skip_record": "function",
    "Fetcher.PartitionRecords._unpack_records": "function",
    "Fetcher.PartitionRecords.drain": "function",
    "Fetcher.PartitionRecords.take": "function",
    "Fetcher._append": "function",
    "Fetcher._parse_fetched_data": "function",
    "_manager._build_transport": "method",
    "transport._sock": "socket",
}
"""Names that only make reading faster; checked where they are used."""

ROOTS = SimpleNamespace(
    MemoryRecords=MemoryRecords,
    DefaultRecordBatch=DefaultRecordBatch,
    LegacyRecordBatch=LegacyRecordBatch,
    KafkaSSLTransport=KafkaSSLTransport,
)


def absent(root: Any, names: Mapping[str, str]) -> str | None:
    """Return the first name that is missing or has another type; None: all are as expected.

    >>> absent("", {"upper": "builtin_function_or_method", "upper.__name__": "str", "_lower": "method"})
    '_lower'
    """
    for path, kind in names.items():
        found = root
        for name in path.split("."):
            found = getattr(found, name, None)
        if type(found).__name__ != kind:
            return path
    return None


def unknown_client(path: str) -> BrokerError:
    """Return the error for a client that lacks this name."""
    return BrokerError(f"kafka-python {kafka.__version__} has no {path}, which downspout needs", cure=CURE)


def check_consumer(consumer: Any) -> None:
    """Close a consumer and raise BrokerError if the installed kafka-python lacks a name that consumers need."""
    if path := absent(consumer, CONSUMER) or absent(ROOTS, CLASSES):
        consumer.close(autocommit=False, timeout_ms=0)
        raise unknown_client(path)


def check_producer(producer: Any) -> None:
    """Close a producer and raise BrokerError if a private name is missing, or the brokers are older than 0.11."""
    batch = ProducerBatch(TopicPartition("", 0), MemoryRecordsBuilder(FORMAT, 0, 0))
    probe = SimpleNamespace(producer=producer, batch=batch)
    path = absent(probe, PRODUCER)
    if path is None and producer.config["enable_idempotence"]:
        path = absent(probe, IDEMPOTENT | (TRANSACTIONAL if producer.config["transactional_id"] else {}))
    error: BrokerError | None = None
    if path is not None:
        error = unknown_client(path)
    elif (found := producer._accumulator.config["message_version"]) != FORMAT:
        error = BrokerError(f"the brokers take records of format {found} only", cure="brokers of Kafka 0.11 or newer")
    if error is not None:
        producer.close(timeout=0)
        raise error
