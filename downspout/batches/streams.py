"""What travels between the components of a batch topology: streams, their fields, and message ids.

::

    coordinator ──$batch──▶ emitter tasks ──▶ your bolts ──▶ state tasks
                ──$commit─▶ emitter and state tasks          (and $batch, $commit, $success)
                ──$success▶ emitter and state tasks

The coordinator emits ``$batch`` and ``$commit`` with a message id, so each opens a tuple tree, and ``$success`` without
one. All three go to all tasks (all-grouping). What a bolt emits for a batch is anchored to the tuple that it came from,
and its field ``attempt`` is the attempt. So the tree of ``$batch`` is complete when all tasks have the whole batch.

Rules for a task that holds something of a batch, an emitter or a state:

* It has seen the *beginning* of an attempt when the tuple of ``$batch`` has come. Tuples of an attempt whose beginning
  it has not seen are kept and **not acked** until it comes: if the task were restarted between the two, it would have
  lost what it had acked, and yet seen the beginning.
* A tuple of an older attempt than the newest of its transaction is acked and dropped; a newer attempt drops what is
  held of the older ones.
* A ``$commit`` of an attempt whose beginning it has not seen, or that is not the newest, is answered with *fail*.
* ``$success`` of a transaction drops what is held up to it. It may be lost.

:class:`downspout.batches.core.held.Held` keeps these rules.
"""

from __future__ import annotations

from typing import Final

from downspout.batches.core.attempt import Attempt

BATCH: Final = "$batch"
COMMIT: Final = "$commit"
SUCCESS: Final = "$success"
CONTROL: Final = (BATCH, COMMIT, SUCCESS)
"""The coordinator's streams, by Trident's names."""

ATTEMPT: Final = "attempt"
BATCH_FIELDS: Final = (ATTEMPT, "epoch", "partitions")
"""``epoch``: of the coordinator's claim, for writes to the store. ``partitions``: those of this attempt, in order, each
as ``[topic, partition]``; a coordinator of a user's own may put anything there that its emitter understands."""
COMMIT_FIELDS: Final = (ATTEMPT, "epoch")
SUCCESS_FIELDS: Final = (ATTEMPT, "epoch")
FIELDS: Final = {BATCH: BATCH_FIELDS, COMMIT: COMMIT_FIELDS, SUCCESS: SUCCESS_FIELDS}


MICRO_BATCHES: Final = "downspout.micro_batches"
"""In a component's configuration: an engine makes the batches, so no coordinator speaks to it."""


def message_id(stream: str, attempt: Attempt) -> str:
    """Return the message id of a tuple of the coordinator.

    >>> message_id(COMMIT, Attempt(3, 1))
    '$commit/3/1'
    """
    return f"{stream}/{attempt.txid}/{attempt.attempt}"


def of_message_id(text: str) -> tuple[str, Attempt]:
    """Return the stream and the attempt that a message id names.

    >>> of_message_id("$commit/3/1")
    ('$commit', Attempt(txid=3, attempt=1))
    """
    stream, txid, attempt = text.split("/")
    return stream, Attempt(int(txid), int(attempt))
