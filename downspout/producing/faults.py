"""Errors of records that were sent: whom they concern, and what to do about them.

==================  ================================================================================
concerns            what happens
==================  ================================================================================
one record          its tuple fails, alone; its spout tries again, and dead-letters it in the end
brokers, producer   its tuple fails, and that counts no attempt: another record would have fared no better
all                 the component stops, and the error names what to grant
==================  ================================================================================
"""

from __future__ import annotations

from kafka import errors

from downspout.errors import BrokerError, RecordError, UnavailableError
from downspout.kafka.patches.transactional import REFUSALS
from downspout.kafka.retry_gate import describe

__all__ = ["FENCED", "concerns_all", "error_of_all", "error_of_record", "is_its_own"]

FENCED = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
ALL = (
    errors.ClusterAuthorizationFailedError, errors.TransactionalIdAuthorizationFailedError,
    errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError, errors.UnsupportedVersionError,
)  # fmt: skip
OF_A_TOPIC = (errors.TopicAuthorizationFailedError, errors.UnknownTopicOrPartitionError)
"""What concerns all records where one topic takes them all."""

CURES: dict[type[BaseException], str] = {
    errors.MessageSizeTooLargeError: "make the record smaller, or raise max.message.bytes of the topic (and "
    "produce.request_bytes_max)",
    errors.RecordListTooLargeError: "lower produce.batch_bytes, or raise segment.bytes of the topic",
    errors.InvalidTimestampError: "correct the time, or message.timestamp.after.max.ms and before.max.ms of the topic",
    errors.InvalidRecordError: "make it one that the topic takes",
    errors.UnknownTopicOrPartitionError: "create the topic (`downspout kafka create`), or correct its name",
    errors.InvalidTopicError: "name another topic: this one is Kafka's own, or no topic can have this name",
    errors.TopicAuthorizationFailedError: "grant this client WRITE and DESCRIBE on the topic (an ACL of the broker)",
    errors.NotEnoughReplicasError: "start the brokers that hold its other replicas, or lower min.insync.replicas",
    errors.NotEnoughReplicasAfterAppendError: "start the brokers that hold its other replicas, or lower "
    "min.insync.replicas",
    errors.KafkaTimeoutError: "see whether the brokers answer, and how far the topic's replicas are",
    errors.PolicyViolationError: "see the broker's policy for this topic",
}
OF_INVALID = {
    "without key": "give it a key: the topic is compacted",
    "imestamp": CURES[errors.InvalidTimestampError],
}
"""What helps against an InvalidRecordError, by a word of its text."""
NO_REPLICAS = (errors.NotEnoughReplicasError, errors.NotEnoughReplicasAfterAppendError)


def concerns_all(error: BaseException, *, one_topic: bool) -> bool:
    """Return whether no other record would fare better.

    Args:
        error: what the producer says.
        one_topic: whether all records go to one topic: then it is missing, or a right to it, for all of them.
    """
    return isinstance(error, ALL) or (one_topic and isinstance(error, OF_A_TOPIC))


def is_outage(error: BaseException) -> bool:
    """Return whether a record was not written for its producer's sake, or because brokers were away.

    What is not known to refuse records refuses their producer: kafka-python has a bare KafkaError for some of that.

    >>> is_outage(errors.KafkaTimeoutError()), is_outage(errors.KafkaError(errors.InvalidProducerIdMappingError()))
    (True, True)
    >>> is_outage(errors.MessageSizeTooLargeError()), is_outage(errors.UnknownTopicOrPartitionError())
    (False, False)
    >>> is_outage(errors.KafkaError("Could not execute transactional request for unknown reasons"))
    True
    """
    if isinstance(error, errors.KafkaTimeoutError) and error.__cause__ is not None:
        return is_outage(error.__cause__)
    return isinstance(error, errors.KafkaError) and not isinstance(error, REFUSALS)


def is_its_own(error: BaseException, partition: int) -> bool:
    """Return whether a record of a transaction was refused for its own sake: another transaction would refuse it too.

    >>> is_its_own(errors.UnknownTopicOrPartitionError(), -1), is_its_own(errors.UnknownTopicOrPartitionError(), 0)
    (True, False)

    Args:
        error: what the producer says.
        partition: -1: the record did not come as far as that.
    """
    if isinstance(error, errors.KafkaTimeoutError) or is_outage(error):
        return False
    return partition < 0 or not getattr(error, "retriable", False)


def error_of_all(component: str, topic: str, error: BaseException) -> BrokerError:
    """Return the error that stops the component."""
    cure = CURES.get(type(error))
    if isinstance(error, errors.ClusterAuthorizationFailedError):
        cure = "grant this client IDEMPOTENT_WRITE on the cluster, or set produce.idempotence=false"
    what = f"nothing can be written to {topic}: {describe(error)}"
    if isinstance(error, errors.UnknownTopicOrPartitionError):
        what = f"there is no topic {topic}, and the broker does not create it"
    return BrokerError(
        (f"{component}: " if component else "") + what,
        cure=cure or "see what the broker's log says of this client",
    )


def error_of_record(component: str, place: str, where: str, error: BaseException) -> RecordError:
    """Return why a tuple fails.

    Args:
        component: the bolt; empty: it is not named.
        place: the coordinates of the record from which the tuple came, or nothing.
        where: to which topic, or partition, it was to go.
        error: what the producer says.
    """
    otherwise = "see the broker's log"
    what = f"not written to {where}: {describe(error)}"
    if isinstance(error, errors.KafkaTimeoutError) and error.__cause__ is not None:
        what += f"; the last answer was {describe(error.__cause__)}"
        error = error.__cause__
    if isinstance(error, NO_REPLICAS):
        what = f"{where} has fewer replicas in sync (ISR) than its min.insync.replicas: {describe(error)}"
    elif type(error) is ValueError:
        what, otherwise = str(error), "name a topic and a partition that there are"
    cures = [cure for kind, cure in CURES.items() if isinstance(error, kind)]
    if isinstance(error, errors.InvalidRecordError):  # what brokers say of each of several bad records in a batch
        cures = [cure for word, cure in OF_INVALID.items() if word in str(error)] + cures
    who = f"{component}: " if component else ""
    kind = UnavailableError if is_outage(error) else RecordError
    found = kind(f"{place}{who}{what}", cure=cures[0] if cures else otherwise)
    found.__context__, found.__suppress_context__ = error, True  # to be looked at, and not to be logged once more
    return found
