"""A group's lag for people (:func:`lines`), for programs (:func:`as_json`), and as Storm's monitor has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from downspout.errors import coordinates
from downspout.formatting import columns, counted, lasting
from downspout.offsets.lag import GroupLag, PartitionLag, Total

SCHEMA = 1  # Of the JSON; keys are added under the same number, and none is changed or taken away
UNKNOWN = "–"
HEAD = ("partition", "committed", "position", "end", "lag", "age", "done beyond", "uncommitted", "failed", "owner")
NUMBERS = range(1, len(HEAD) - 1)
POSITION = HEAD.index("position")


def number(value: int | None) -> str:
    """Return a number for people.

    >>> number(1234), number(None)
    ('1,234', '–')
    """
    return UNKNOWN if value is None else f"{value:,}"


def age(seconds: float | None) -> str:
    """Return an age for people."""
    return UNKNOWN if seconds is None else lasting(seconds)


def lines(found: GroupLag) -> list[str]:
    """Return a group's table: a line per partition, topic and in all, then what blocks and what is wrong."""
    parts = [found.state]
    if found.state and found.kind == "group":
        parts.append(counted(len(found.members), "member"))
    parts.append(found.coordinator and f"coordinator {found.coordinator}")
    said = ", ".join(filter(None, [*parts, found.problem]))
    out = [f"{found.kind} {found.group}: {said or 'its state is not known'}"]
    rows: list[tuple[str, ...]] = [HEAD]
    for topic in found.topics:
        rows += [_cells(row) for row in topic.partitions]
        if len(topic.partitions) > 1:
            rows.append(_sum_cells(topic.topic, topic.total))
    if sum(bool(topic.partitions) for topic in found.topics) > 1:
        rows.append(_sum_cells("total", found.total))
    if all(row[POSITION] in (UNKNOWN, "", HEAD[POSITION]) for row in rows):  # only a spout itself knows it
        rows = [(*row[:POSITION], *row[POSITION + 1 :]) for row in rows]
    if len(rows) > 1:
        out += [f"  {line}" for line in columns(rows, NUMBERS if len(rows[0]) == len(HEAD) else NUMBERS[:-1])]
    return out + [f"  {line}" for line in _notes(found)]


def _cells(row: PartitionLag) -> tuple[str, ...]:
    counts = (row.committed, row.position, row.end, row.lag)
    beyond = (row.done, row.uncommitted, row.failed) if row.committed is not None else (None, None, None)
    place = coordinates(row.topic, row.partition)
    return (place, *map(number, counts), age(row.lag_s), *map(number, beyond), owner(row) or UNKNOWN)


def owner(row: PartitionLag) -> str:
    """Name the live member that owns a partition, and the task that committed last.

    >>> owner(PartitionLag("orders", 0, member="flights-0", host="10.0.0.7", topology_id="flights-1", task=4))
    'flights-0 on 10.0.0.7 (task 4 of flights-1)'
    >>> owner(PartitionLag("orders", 0, topology_id="flights-1"))
    'no member (flights-1)'
    """
    task = "" if row.task is None else f"task {row.task} of "
    author = f" ({task}{row.topology_id})" if row.topology_id else ""
    if row.member:
        return f"{row.member} on {row.host}{author}"
    return f"no member{author}" if author else ""


def _sum_cells(name: str, total: Total) -> tuple[str, ...]:
    return (
        *(name, "", "", "", number(total.lag), age(total.lag_s)),
        *map(number, (total.done, total.uncommitted, total.failed)),
        "",
    )


def _notes(found: GroupLag) -> list[str]:
    notes = [f"{topic.topic}: {topic.problem}" for topic in found.topics if topic.problem]
    for row in found.partitions:
        place = coordinates(row.topic, row.partition)
        if row.problem:
            notes.append(f"{place}: {row.problem}")
        elif row.committed is None:
            notes.append(f"{place}: no commit; its log holds offsets {number(row.begin)} to {number(row.end)}")
        elif row.begin is not None and row.committed < row.begin:
            notes.append(f"{place}: {counted(row.begin - row.committed, 'offset')} of the lag are gone from Kafka")
        if row.blocks is not None:
            notes.append(f"{coordinates(row.topic, row.partition, row.blocks)} blocks: {row.why}")
    return notes


# --- for programs ---


def as_json(found: Sequence[GroupLag], at: str) -> dict[str, Any]:
    """Return groups as JSON values; ``at`` says when they were looked at."""
    return {"schema": SCHEMA, "at": at, "groups": [_group(each) for each in found]}


def _group(found: GroupLag) -> dict[str, Any]:
    return {
        "group": found.group,
        "kind": found.kind,
        "state": found.state or None,
        "coordinator": found.coordinator or None,
        "problem": found.problem or None,
        "members": [
            {"member": each.name, "client_id": each.client_id, "host": each.host, "partitions": len(each.partitions)}
            for each in found.members
        ],
        "total": asdict(found.total),
        "topics": [
            {
                "topic": topic.topic,
                "problem": topic.problem or None,
                "total": asdict(topic.total),
                "partitions": [_partition(row) for row in topic.partitions],
            }
            for topic in found.topics
        ],
    }


def _partition(row: PartitionLag) -> dict[str, Any]:
    values = asdict(row)
    del values["topic"]
    return {name: None if value == "" else value for name, value in values.items()}
