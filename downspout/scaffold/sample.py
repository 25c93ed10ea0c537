"""Sample records: the lines of a file, each a JSON object. What is not one is named by its line."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from downspout.errors import ConfigError
from downspout.parse.paths import JSON_NAMES

RECORDS_MAX = 10_000
"""Records that are read of a sample; more say little else."""
LINE_BYTES_MAX = 1 << 20
CURE = "one JSON object in each line, as `downspout kafka consume TOPIC --raw` prints them"


@dataclass(frozen=True)
class Sample:
    """The records of a sample."""

    lines: list[bytes]  # as they stand in the file, without their ends
    numbers: list[int]  # of these lines, from 1
    objects: list[dict[str, Any]]
    is_whole: bool  # whether the file has no more


def read_sample(path: Path) -> Sample:
    """Return the first RECORDS_MAX records of a file; blank lines are left out.

    Raises:
        ConfigError: the file cannot be read, has no records, or a line is not a JSON object; names the line.
    """
    try:
        with path.open("rb") as file:
            found = list(islice(_records(path, file), RECORDS_MAX + 1))
    except OSError as error:
        raise ConfigError(f"--from {path}: {error.strerror}", cure="a file of JSON lines") from None
    if not found:
        raise ConfigError(f"--from {path}: no records", cure=CURE)
    kept = found[:RECORDS_MAX]
    return Sample(
        [line for _, line, _ in kept],
        [number for number, _, _ in kept],
        [found for _, _, found in kept],
        is_whole=len(found) <= RECORDS_MAX,
    )


def _records(path: Path, file: Any) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        where = f"--from {path}, line {number}"
        if len(line) > LINE_BYTES_MAX:
            raise ConfigError(f"{where}: longer than {LINE_BYTES_MAX:,} bytes", cure=CURE)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)  # as Windows' programs put it before a text
        if line := line.strip():
            yield number, line, _object(line, where)


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line.decode(), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: byte {error.start + 1} is not UTF-8", cure="the file in UTF-8") from None
    except json.JSONDecodeError as error:
        cure = f"{CURE}; an array or an indented object: `jq -c` makes lines of it" if line in (b"[", b"{") else CURE
        raise ConfigError(f"{where}: not JSON at character {error.pos + 1}: {error.msg}", cure=cure) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}", cure=CURE) from None
    if type(value) is not dict:
        raise ConfigError(f"{where}: {JSON_NAMES[type(value)]}, where an object is needed", cure=CURE)
    return value


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not JSON")
