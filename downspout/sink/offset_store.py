"""Offsets in a sink's directory, beside its log: rows and offsets are moved, copied and backed up together.

Each change creates a new numbered file with all offsets of a group, exclusively, like a log entry. So of two writers
one is first, and the other reads the new state and tries again.

Old files are removed, all but the last :data:`KEPT`. The race: a process reads file 7 and is paused, while others go on
to 500 and remove 8; then it creates 8, which succeeds. That has no effect, since the highest number counts. So a writer
checks that its file is among the last; if not, it makes the change again.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from downspout.errors import coordinates
from downspout.kafka.port import TopicPartition
from downspout.settings.folders import of_project
from downspout.sink.layout import OURS
from downspout.sink.log_entry import from_document, listed, text, to_document, whole
from downspout.sink.storage import Disk
from downspout.spout.ports import OffsetStoreError, StaleOwnerError, StoreContext, StoredOffset

T = TypeVar("T")
PREFIX = "parquet:///"
FORMAT = 1
KEPT = 100
NAME = re.compile(r"(\d{20})\.json")
State = dict[TopicPartition, StoredOffset]


def open_directory_store(location: str, context: StoreContext) -> DirectoryStore:
    """Open the store of a directory: ``parquet:///out``."""
    directory = of_project(location.removeprefix(PREFIX), context.setting, {})
    return DirectoryStore(directory, context.group)


class DirectoryStore:
    """The offsets of one consumer group. See :class:`~downspout.spout.ports.OffsetStore`."""

    def __init__(self, directory: Path, group: str, disk: Disk | None = None, folder: Path | None = None) -> None:
        self.location = f"{PREFIX}{directory}"
        self._disk, self._group = disk or Disk(), group
        self._folder = folder or directory / OURS / "offsets" / f"group-{quote(group, safe='')}"
        self._is_durable = False

    def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StoredOffset]:
        """Return the entries of these partitions."""
        return {tp: stored for tp, stored in self.list().items() if tp in partitions}

    def claim(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StoredOffset]:
        """Claim all or none."""

        def change(state: State) -> State:
            for tp in partitions:
                before = state.get(tp, StoredOffset(None))
                state[tp] = before._replace(epoch=before.epoch + 1)
            return {tp: state[tp] for tp in partitions}

        return self.change(change) if partitions else {}

    def store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store all or none."""

        def change(state: State) -> None:
            for tp, stored in offsets.items():
                if (before := state.get(tp)) is not None and before.epoch > stored.epoch:
                    place = coordinates(tp.topic, tp.partition)
                    raise StaleOwnerError(
                        f"{self.location}: {place} of group {self._group} was claimed by another process (epoch "
                        f"{stored.epoch} has ended); nothing was stored",
                        cure="one topology for each group",
                    )
            state.update(offsets)

        if offsets:
            self.change(change)

    def list(self) -> Mapping[TopicPartition, StoredOffset]:
        """Return all of the group."""
        try:
            _, state = self._read()
        except OSError as error:
            raise self._error(error) from error
        return {tp: stored for tp, stored in sorted(state.items()) if stored.offset is not None}

    def delete(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all or none."""

        def change(state: State) -> None:
            for tp in partitions:
                state.pop(tp, None)

        if partitions:
            self.change(change)

    def close(self) -> None:
        """Nothing is open."""

    def change(self, change: Callable[[State], T]) -> T:
        """Change the present state; if another was first, change the new state. Returns the result of ``change``."""
        try:
            self._make_folder()
            while True:
                number, state = self._read()
                result = change(state)
                if self.put(number + 1, state):
                    return result
        except OSError as error:
            raise self._error(error) from error

    # --- files ------------------------------------------------------------------------------------------

    def put(self, number: int, state: State) -> bool:
        """Create a file; return whether it exists and counts."""
        # The token makes each file one that nobody else would write.
        document = {"format": FORMAT, "token": uuid.uuid4().hex, "offsets": [[*tp, *state[tp]] for tp in sorted(state)]}
        temporary = self._folder / f".{uuid.uuid4().hex}"
        if not self._disk.put_if_absent(self._path(number), to_document(document), temporary):
            return False
        numbers = self._numbers()
        counts = numbers[-1] - number < KEPT
        for old in numbers[:-KEPT]:
            self._disk.remove(self._path(old))
        return counts

    def _read(self) -> tuple[int, State]:
        """Return the highest number, and what its file holds."""
        while numbers := self._numbers():
            path = self._path(numbers[-1])
            try:
                return numbers[-1], _state(from_document(self._disk.read(path), FORMAT))
            except FileNotFoundError:
                continue  # others have gone on, by so much that it is removed
            except ValueError as error:
                raise OffsetStoreError(
                    f"{path} cannot be read: {error}",
                    cure="restore it from a backup; or remove it: the one before holds",
                ) from None
        return -1, {}

    def _numbers(self) -> Sequence[int]:
        return sorted(int(found[1]) for name in self._disk.names(self._folder) if (found := NAME.fullmatch(name)))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:020}.json"

    def _make_folder(self) -> None:
        """Make the folder durable: else a power cut may take it, with all that is in it."""
        if self._is_durable:
            return
        self._disk.make_folder(self._folder)
        for place in (self._folder, *list(self._folder.parents)[:4]):
            self._disk.sync(place)
        self._is_durable = True

    def _error(self, error: OSError) -> OffsetStoreError:
        return OffsetStoreError(
            f"{self.location}: {error.strerror or error} ({error.filename or self._folder})",
            cure="a folder that this user may write, with room on the disk",
        )


def _state(document: Mapping[str, Any]) -> State:
    """Parse a file. It is untrusted: malformed content raises ValueError."""
    found: State = {}
    for row in listed(document.get("offsets")):
        topic, partition, offset, metadata, epoch = listed(row)
        tp = TopicPartition(text(topic), whole(partition))
        found[tp] = StoredOffset(None if offset is None else whole(offset), text(metadata), whole(epoch))
    return found
