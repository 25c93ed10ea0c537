"""Kafka: a client behind a port, columns from the wire, and what is changed about kafka-python.

* ``port``: what the rest of the library knows of Kafka: a cluster, its consumers and producers. ``clusters`` finds one
  by its bootstrap string, and ``schemes`` lets a name stand for an address (``embedded``, for the broker of that name).
* ``client``, ``consumer``, ``producer``: the port on real brokers. ``joining`` says what is changed about groups,
  ``producer_batches`` fills batches, ``client_values`` checks properties, ``noise`` filters logs.
* ``address``, ``handshake``, ``frames``: one question to one address, before a client is made.
* ``columns``: fetched batches as numpy and Arrow arrays; ``unreadable``: what cannot be given whole.
* ``retry_gate``: errors that pass, and when to try again; ``rereading``: records read again by their places.
* ``patches``: every place that touches a private name of kafka-python, one file per fault.

It imports nothing when it is imported, so that a command that needs an address alone does not load the client.
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "retry_gate": "RetryGate",
        "patches.unknown_leaders": "ask_leaders",
        "patches.silent_expiry": "keep_reasons",
        "patches.lost_seeks": "atomic_seek",
        "patches.fetches_alike": "gathering",
        "address": "ask_all",
        "client": "KafkaCluster",
        "clusters": "cluster_for",
        "columns": "ColumnRecord RecordColumns",
        "columns.batch": "batches",
        "columns.decode": "decode",
        "columns.fetch": "bounded column_records",
        "columns.varints": "NotStraight",
        "consumer": "KafkaConsumerPort watched",
        "describing": "NO_LEADER",
        "frames": "NotKafkaError",
        "partitioners": "Partitions partition_of_key",
        "port": (
            "TransactionalPort "
            "Cluster ConsumerPort GroupDescription GroupMember GroupMembership LogState OffsetAndMetadata "
            "OpenTransaction ProducerPort Record Sent TopicPartition TopicState"
        ),
        "reading": "TopicReader",
        "unreadable": "CUT_BYTES Limits Tolerance Unreadable",
    },
)
