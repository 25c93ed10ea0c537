"""A Kafka client behind a port, fetched bytes as columns, and workarounds for kafka-python.

* ``port``: the interface the rest of the library uses: a cluster, its consumers and producers. ``clusters`` finds a
  cluster by its bootstrap string; ``address`` diagnoses addresses that do not work.
* ``client``, ``consumer``, ``producer``: the port on real brokers. ``describing`` answers administrators' questions,
  ``producer_batches`` fills batches, ``partitioners`` choose partitions, ``client_values`` checks properties,
  ``log_filters`` filters the client's log.
* ``columns``: fetched batches as numpy and Arrow arrays; ``unreadable``: records that cannot be returned whole.
* ``scan``: reads part of a log; ``retry_gate``: classifies and retries errors.
* ``patches``: the only modules that use private names of kafka-python.

Importing the package loads no submodule: a command that needs only an address does not load the client.

To change how fetched bytes become columns: columns/decode.py
To change how columns become records, and how a commit is sent: consumer.py
To change which partition a record goes to (murmur2): partitioners.py
To change how batches are filled and sent: producer_batches.py
To change when a transactional producer is replaced: producer.py
To change which client errors are retried: retry_gate.py
To change when a broker counts as unavailable: patches/connecting.py
To change how an outage is reported: ../outages.py
To change which private names of kafka-python are used: patches/private_api.py
To change where `downspout kafka consume` begins and ends: scan.py
To change what the client's log hides: log_filters.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "address": "HungUpError ListenerProtocol NotKafkaError RefusedError ask_all parse_bootstrap",
        "client": "KafkaCluster",
        "client_values": "producer_properties",
        "clusters": "cluster_for",
        "columns": "ColumnRecord RecordColumns",
        "columns.batch": "batches",
        "columns.decode": "decode",
        "columns.fetcher": "bounded column_records",
        "columns.wire": "FastPathMiss decoded_headers encoded_headers",
        "consumer": "KafkaConsumerPort watched",
        "describing": "NO_LEADER",
        "partitioners": "Partitions StuckPartitions partition_of_key",
        "patches.connecting": "WideSocket",
        "patches.fetching": "ask_leaders atomic_seek gathering",
        "patches.producing": "keep_reasons",
        "port": (
            "Cluster ConsumerPort Fetches GroupDescription GroupMember GroupMembership LogState OffsetAndMetadata "
            "OpenTransaction ProducerPort Record Sent TopicPartition TopicState TransactionalPort"
        ),
        "retry_gate": "RetryGate answer_of",
        "scan": "END LogPoint Rereader TopicReader scan",
        "unreadable": "CUT_BYTES Limits Tolerance Unreadable",
    },
)
