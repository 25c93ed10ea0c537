"""The base of sinks for directories; ``row_sink.py`` holds rows and acks durable ones. And when one is compacted."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, ClassVar, Unpack
from urllib.parse import quote

import pyarrow as pa
from streamparse.dsl.bolt import ShellBoltSpec

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.component import task_number
from downspout.errors import ConfigError
from downspout.formatting import counted
from downspout.ledger.retry_schedule import Backoff
from downspout.settings import folders
from downspout.settings.object_path import ObjectPath, is_object_url, place_path
from downspout.settings.options import ParquetOptions
from downspout.settings.secrets import STORAGE_OPTIONS
from downspout.settings.table import SETTINGS, parse_scope
from downspout.sink.identity import Mask, check_names
from downspout.sink.notes import run_of
from downspout.sink.object_store import SINK_RETRY_S, storage_of
from downspout.sink.row_sink import Batch, RowSink
from downspout.sink.schema import Columns, hive_folders
from downspout.sink.storage import Storage
from downspout.sink.writer import Build, Flushed, SinkWriter, Times

logger = logging.getLogger("downspout.sink")


class SinkBolt(RowSink):
    """Base of ParquetBolt and AggregateBolt."""

    settings_scopes: ClassVar[tuple[str, ...]] = ("parquet",)
    figures: ClassVar[tuple[str, ...]] = ("rows", "files", "bytes", "covered")
    disk: Storage | None = None
    """The file operations; None: those of the storage that ``parquet.directory`` names."""
    files_max: ClassVar[int] = 400
    """The files that become visible together. A flush of more is written in parts, so that a stop repeats one part."""
    writer_class: type[SinkWriter] = SinkWriter
    """An engine that commits in another place puts another one here, before ``initialize``."""

    @classmethod
    def spec(  # type: ignore[override]  # a base takes any settings, so that its heirs may have theirs
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: int | dict[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[ParquetOptions],
    ) -> ShellBoltSpec:
        """Put the sink into a topology; the arguments are those of :meth:`RowSink.spec`.

        Raises:
            ConfigError: a setting is unknown, malformed or out of range, or the schema is malformed.
        """
        return super().spec(name, inputs, par, config, **settings)

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> list[Any]:
        """Check the columns; return no streams, since the sink emits nothing."""
        cls.columns_of(config)
        return []

    @classmethod
    def columns_of(cls, conf: Mapping[str, Any]) -> Columns:
        """Return the columns that a configuration declares, checked with the settings that refer to them."""
        declared = SETTINGS["parquet.schema"].parse(conf.get("parquet.schema"), "spec")
        if not declared:
            raise ConfigError("parquet.schema is not set", cure='schema={"carrier": "string", "delay": "int16"}')
        columns = Columns.parse(declared)
        folders = SETTINGS["parquet.partition_by"].parse(conf.get("parquet.partition_by", []), "spec")
        cls.folder_columns(columns, conf).check_folders(folders)
        return columns.with_folders(folders)

    @classmethod
    def folder_columns(cls, columns: Columns, conf: Mapping[str, Any]) -> Columns:
        """Return the columns that may name folders."""
        return columns

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings, find the fields in the inputs, and open the directory."""
        self.read_settings(storm_conf)
        with_origins = self.begin(self.columns_of(storm_conf), context)
        self.writer = self.make_writer(
            storm_conf,
            str(self.component_name),
            with_origins,
            kind=self.writer_class,
            writer=f"{quote(str(self.component_name), safe='')}-{self.task_id}-{uuid.uuid4().hex[:12]}",
            disk=self.disk,
            clock=self.clock,
        )
        self.patiently(self.writer.open)
        self._warned_of_folders = False
        every_s = self.settings["compact_every_s"]
        self._alongside = None
        # One of all tasks. Where files are not on a real storage, no other process could reach them.
        if every_s and self.disk is None and self.writer_class is SinkWriter and is_first(storm_conf, context):
            self._alongside = Alongside(self.writer.directory, every_s, self.clock, self.settings["storage_options"])

    @classmethod
    def make_writer(
        cls, conf: Mapping[str, Any], component: str, inputs: Sequence[str], *, kind: type[SinkWriter] = SinkWriter,
        writer: str = "", disk: Storage | None = None, clock: Clock = SYSTEM_CLOCK,
    ) -> SinkWriter:  # fmt: skip
        """Return the writer of a sink's directory, not opened yet; ``inputs`` are those that carry origins."""
        settings = parse_scope(conf, "parquet")
        directory = directory_of(settings["directory"], conf)
        return kind(
            directory,
            topology=str(conf.get("topology.name", "")),
            component=component,
            columns=cls.fingerprint(conf),
            writer=writer,
            inputs=inputs,
            input_names=check_names(settings["input_names"], inputs),
            partition_by=settings["partition_by"],
            compression=settings["compression"],
            rebuild=settings["rebuild"],
            lateness_s=settings["lateness_s"],
            idle_s=settings["idle_s"],
            run=run_of(conf),
            disk=disk or storage_of(directory, settings["storage_options"], SINK_RETRY_S),
            clock=clock,
        )

    @classmethod
    def fingerprint(cls, conf: Mapping[str, Any]) -> list[str]:
        """Return the settings that must stay the same for a directory."""
        return [column.declared for column in cls.columns_of(conf).columns]

    def parts(self, batch: Batch) -> Iterable[Batch]:
        """Return the rows of ``files_max`` folders at a time: each folder has a file of its own in every flush."""
        folders, numbers = hive_folders(batch.table, self.settings["partition_by"])
        if len(folders) <= self.files_max:
            return [batch]
        if not self._warned_of_folders:
            self._warned_of_folders = True
            logger.warning(
                "%s: a flush of %s makes %s files, one for each value of parquet.partition_by = %s: they are slow to "
                "write and to read. Try: partition_by a column of fewer values, such as a date",
                self.component_name, counted(len(batch.ids), "row"), f"{len(folders):,}",
                ", ".join(self.settings["partition_by"]),
            )  # fmt: skip
        return batch.split(numbers // self.files_max)

    def write(self, batch: Batch) -> tuple[Batch, Flushed]:
        """Write the rows that are not in the directory yet."""
        flushed = self.writer.flush(batch.identities, self.builder(batch.table), self.times(batch))
        if flushed.aside is not None:
            self.set_aside(batch, flushed.aside)
        return batch, flushed

    def times(self, batch: Batch) -> Times | None:
        """Return the times of the rows, if they have windows."""
        return None

    def set_aside(self, batch: Batch, rows: Mask) -> None:
        """Emit rows that were not written because they came too late."""
        raise NotImplementedError

    def process_tick(self, tup: Any) -> None:
        """Flush rows that are old enough, and attend to the compaction."""
        super().process_tick(tup)
        if self._alongside is not None:
            self._alongside.look()

    def report(self) -> Mapping[str, float]:
        """Return what was written, what is held, and how long the log is."""
        return {**super().report(), "log_entries": self.writer.log.length}

    @property
    def service(self) -> str:
        """The directory, and the endpoint of its store."""
        return self.writer.disk.named(self.writer.directory)

    @property
    def steps(self) -> Mapping[str, str]:
        """The tag of each input in the directory's log."""
        return self.writer.steps

    def warn_that_nothing_was_written(self, batch: Batch) -> None:
        """Warn that all rows of a flush were written before, and say how to rebuild the directory."""
        logger.warning(
            "%s: all %s of a flush (from %s) are in %s already, and none was written. After a restart, or a replay of "
            "dead letters, that is expected. To process records again: parquet.rebuild=%d, or another "
            "directory, together with another kafka.group and kafka.start=EARLIEST",
            self.component_name, counted(len(batch.ids), "row"), batch.identities.place(0), self.writer.directory,
            self.writer.log.rebuild + 1,
        )  # fmt: skip

    @abstractmethod
    def builder(self, table: pa.Table) -> Build:
        """Return the function that makes the table to write from the rows that a mask selects."""


def is_first(conf: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
    """Return whether this is the first of a component's tasks, in the first of a run's processes.

    >>> names = {"3": "sink", "4": "sink"}
    >>> [is_first({}, {"taskid": task, "componentid": "sink", "task->component": names}) for task in (3, 4)]
    [True, False]
    """
    return task_number(context)[0] == 0 and int(conf.get("run.member") or 1) == 1


def directory_of(directory: str, conf: Mapping[str, Any]) -> Path:
    """Return where the files go.

    >>> directory_of("/data/out", {"storm.cluster.mode": "distributed"}).as_posix()
    '/data/out'
    >>> str(directory_of("s3://bucket/out", {}))
    's3://bucket/out'
    """
    text = place_path(directory, f"parquet.directory = {directory!r}")
    return ObjectPath(text) if is_object_url(text) else folders.of_project(text, "parquet.directory", conf)


# --- compaction while a topology runs ---
#
# In a process that the sink's first task starts from time to time: a compaction needs memory and CPU time, and the
# task must go on. It may end at any moment and run beside others (``compact.py``), so nothing waits for it, and it
# stops with the sink's process. Merged files stay merged, and the next compaction continues: soon after a sink's start,
# so that a sink that restarts often compacts too, and soon after an error.

NICE = 10
STOP_S_MAX = 10.0
SOON_S = 5.0  # From a sink's start to its first compaction; to the next try after an error, doubled with each in a row


class Alongside:
    """Compacts a directory periodically.

    Args:
        directory: the sink's.
        every_s: seconds from the start of one to the start of the next; less up to the first, and after an error.
        clock: the time source.
        storage_options: how an object store is reached.
    """

    def __init__(self, directory: Path, every_s: float, clock: Clock, storage_options: Sequence[str] = ()) -> None:
        self._directory, self._every_s, self._clock = directory, every_s, clock
        self._options = ",".join(storage_options)
        self._due = clock.monotonic() + min(every_s, SOON_S)
        self._failures = 0  # in a row
        self._backoff = Backoff(int(SOON_S * 1000), int(every_s * 1000))
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None

    def look(self) -> None:
        """Start a compaction if one is due, and log how the last one ended."""
        if self._process is not None and self._process.poll() is not None:
            self._tell(self._process.returncode)
        now = self._clock.monotonic()
        if now >= self._due and self._process is None:
            self._due = now + self._every_s
            self._start()

    def _start(self) -> None:
        environment: Mapping[str, str] = os.environ
        if self._options:
            environment = {**os.environ, SETTINGS[STORAGE_OPTIONS].env: self._options}
        command = [sys.executable, "-m", "downspout", "compact", str(self._directory)]
        self._said = TemporaryFile()  # noqa: SIM115 - it is closed when the process has ended
        try:
            # A session of its own: Ctrl-C in a terminal is for the run, which ends this process when it ends itself.
            self._process = subprocess.Popen(
                ["nice", "-n", str(NICE), *command], stdin=subprocess.DEVNULL, stdout=self._said,
                stderr=subprocess.STDOUT, start_new_session=True, env=environment,
            )  # fmt: skip
        except OSError as error:
            logger.warning("%s: no compaction could be started: %s", self._directory, error)
            self._said.close()
        else:
            atexit.register(self.stop)

    def _tell(self, code: int) -> None:
        assert self._said is not None  # as long as there is a process
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").splitlines()
        self._forget()
        self._failures = self._failures + 1 if code else 0
        if code:
            wait_s = self._backoff.delay(self._failures) / 1000
            self._due = self._clock.monotonic() + wait_s
            said = "; ".join(lines[-3:]) or "it said nothing"
            logger.warning("compaction ended with %d: %s. It restarts in %g s", code, said, wait_s)
        elif lines:
            logger.info("%s", lines[-1])

    def _forget(self) -> None:
        atexit.unregister(self.stop)
        if self._said is not None:
            self._said.close()
        self._process = self._said = None

    def stop(self) -> None:
        """End the running compaction; its uncommitted files are swept later."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._forget()
