"""Offsets in files: Kafka's CSV, for one group and for many, and JSON of ours, which holds what is done beyond, too.

The CSV is what ``kafka-consumer-groups --export`` writes and ``--from-file`` reads: ``topic,partition,offset``, with
the group in front where there are several.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.errors import ConfigError, coordinates
from downspout.kafka.port import TopicPartition
from downspout.offsets.places import Kind, Place

if TYPE_CHECKING:
    from downspout.offsets.group_offsets import Standing

FORMAT = "downspout-offsets-1"
OFFSET_MAX = 2**63 - 1
_NUMBER = re.compile(r"[0-9]{1,30}")
_IS_JSON = re.compile(r'\s*\{\s*(?:"|\}|\Z)')  # The name of a group may begin with a brace, too
Row = tuple[int, str, TopicPartition, Place]  # Its line, or the number of its entry; group, partition and place


def to_csv(groups: Mapping[str, Sequence[Standing]]) -> str:
    """Return where groups stand as Kafka's CSV, which has no room for what is done beyond the commits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, found in groups.items():
        for standing in found:
            if standing.offset is not None:
                name = [group] if len(groups) > 1 else []
                writer.writerow([*name, standing.tp.topic, standing.tp.partition, standing.offset])
    return out.getvalue()


def to_json(groups: Mapping[str, Sequence[Standing]]) -> dict[str, Any]:
    """Return where groups stand as JSON values, with what is done beyond the commits."""
    return {
        "format": FORMAT,
        "offsets": [
            {"group": group, "topic": s.tp.topic, "topic_id": s.topic_id, "partition": s.tp.partition,
             "offset": s.offset, "done": [list(each) for each in s.metadata.done]}
            for group, found in groups.items() for s in found if s.offset is not None
        ],
    }  # fmt: skip


def read_places(path: Path, groups: Sequence[str]) -> dict[str, dict[TopicPartition, Place]]:
    """Return the places that a file has for these groups.

    Raises:
        ConfigError: the file cannot be read, a line of it is malformed, or it has nothing for one of the groups.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows likes to put a mark in front
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", cure="a file of `downspout offsets export`") from None
    rows = _json_rows(path, text) if _IS_JSON.match(text) else _csv_rows(path, text)
    found: dict[str, dict[TopicPartition, Place]] = {group: {} for group in groups}
    for number, named, tp, place in rows:
        if not named and len(groups) > 1:
            raise ConfigError(
                f"{path}:{number} does not say of which group it is, and {', '.join(groups)} are given",
                cure="group,topic,partition,offset; or one group",
            )
        group = named or groups[0]
        if group not in found:
            continue
        if tp in found[group]:
            raise ConfigError(f"{path}:{number} names {coordinates(*tp)} again", cure="each partition once per group")
        found[group][tp] = place
    if absent := [group for group in groups if not found[group]]:
        raise ConfigError(f"{path} has no offsets for {', '.join(absent)}", cure="look at the names of the groups")
    return found


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    width = 0
    for number, cells in _cells(path, text):
        if not cells:
            continue
        width = width or len(cells)
        if len(cells) != width or width not in (3, 4):
            raise _malformed(path, number, ",".join(cells))
        group, (topic, partition, offset) = cells[0] if width == 4 else "", [cell.strip() for cell in cells[-3:]]
        if not (topic and _NUMBER.fullmatch(partition) and _NUMBER.fullmatch(offset)):
            raise _malformed(path, number, ",".join(cells))
        yield _row(path, number, group, topic, int(partition), int(offset))


def _cells(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader(io.StringIO(text))
    try:
        for cells in rows:
            yield rows.line_num, cells
    except csv.Error:  # a cell of more than 128 KiB
        raise _malformed(path, rows.line_num, "a very long line") from None


def _json_rows(path: Path, text: str) -> Iterator[Row]:
    try:
        document = json.loads(text)
        entries = document["offsets"]
        if document["format"] != FORMAT or not isinstance(entries, list):
            raise ValueError(document["format"])
    except (ValueError, KeyError, RecursionError) as error:
        raise ConfigError(f"{path} is not of the form {FORMAT}: {error}", cure="`offsets export --to json`") from None
    for number, entry in enumerate(entries, 1):
        try:
            names = [entry[key] for key in ("group", "topic", "topic_id")]
            numbers = [entry["partition"], entry["offset"], *(bound for pair in entry["done"] for bound in pair)]
            bounds = numbers[2:]
            sound = all(isinstance(name, str) for name in names) and all(type(value) is int for value in numbers)
            if not sound or len(bounds) % 2 or [entry["offset"], *bounds] != sorted({entry["offset"], *bounds}):
                raise ValueError(entry)
            done = tuple((start, end) for start, end in entry["done"])
        except (ValueError, KeyError, TypeError):
            raise _malformed(path, number, str(entry)) from None
        yield _row(path, number, names[0], names[1], numbers[0], numbers[1], done, names[2])


def _row(
    path: Path, number: int, group: str, topic: str, partition: int, offset: int,
    done: tuple[tuple[int, int], ...] | None = None, topic_id: str = "",
) -> Row:  # fmt: skip
    if not 0 <= partition < 2**31 or not 0 <= offset <= OFFSET_MAX:
        raise _malformed(path, number, coordinates(topic, partition, offset))
    return number, group, TopicPartition(topic, partition), Place(Kind.OFFSET, offset, done, topic_id)


def _malformed(path: Path, number: int, text: str) -> ConfigError:
    return ConfigError(
        f"{path}:{number}: {text[:200]!r} is no offset of a partition", cure="topic,partition,offset, or group in front"
    )
