"""``sparse run``: a topology in Storm's LocalCluster, in one supervised JVM.

If the process of a bolt ends, Storm's local mode logs the same error without a pause and continues without the bolt.
Here the first component that ends also ends the run, with an error that names it and shows its Python traceback. Local
mode also disables message timeouts, which a cluster has; they are enabled again.

The JVM and all components form one process group, which is ended as a whole, even if this process is killed.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from downspout.clock import SYSTEM_CLOCK
from downspout.errors import ComponentError, StormError
from downspout.settings import folders
from downspout.storm import groups, node_files
from downspout.storm.node import default_directory
from downspout.storm.node_files import OURS
from downspout.storm.node_logs import FRAMES, ended_component, python_part
from downspout.system import files, jars
from downspout.system.java import java as find_java
from downspout.system.process import (
    ProcessIdentity,
    await_end,
    handled_by,
    let_go,
    run_at_our_end,
    start_gated,
    stop_watchdog,
)

SLEEP_S_MAX = (2**63 - 1) // 1000  # Storm counts in milliseconds, in a Java long

END_S_MAX = 15.0
LISTEN_ON_S = 1.5  # How long to read on after a component has died: the reason may follow the report
LINES_KEPT = 400

WATCH = "import sys; from downspout.storm.local import watch; watch(int(sys.argv[1]), *sys.argv[2:])"

_THE_END = "STOPPING LOCAL MODE CLUSTER"
_ALARMS = ("Halting process: Shell", "Error when launching multilang subprocess", "Async loop died", "Worker died")

LOG4J = node_files.LOG4J.format(
    file='<File name="LOG" fileName="${sys:storm.log.dir}/local.log" append="false">'
    f'<PatternLayout charset="UTF-8" pattern="{node_files.LINE}"/></File>',
    more='<Console name="CONSOLE" follow="true"><PatternLayout charset="UTF-8" '
    'pattern="%d{HH:mm:ss} %-5p %c{1}: %msg%n"/></Console>',
    loggers='<logger name="org.apache" level="info" additivity="false"><appender-ref ref="LOG"/>'
    '<appender-ref ref="CONSOLE" level="error"/></logger>'
    + "".join(
        f'<logger name="org.apache.storm.{name}" level="info" additivity="false"><appender-ref ref="LOG"/>'
        '<appender-ref ref="CONSOLE"/></logger>'
        for name in ("task.ShellBolt", "spout.ShellSpout", "LocalCluster")
    ),
).replace('<root level="info">', '<root level="info"><appender-ref ref="CONSOLE"/>')


@dataclass
class _Output:
    """The JVM's output, and whether it reported a dead component.

    At the end of the run, Storm ends the components and reports each as an error; these reports are ignored.
    """

    lines: list[str] = field(default_factory=list)
    alarm_at: float | None = None
    is_over: bool = False

    def hear(self, line: str, now: float) -> bool:
        """Process one line; return whether to show it to users."""
        self.is_over = self.is_over or _THE_END in line
        if self.is_over or not line.strip() or "LocalCluster:" in line or line.startswith(("\t\tSTART", "\t\tRUNNING")):
            return False
        if self.alarm_at is None:
            del self.lines[: 1 - LINES_KEPT]
        if len(self.lines) < 2 * LINES_KEPT:  # before the alarm, and as many after it
            self.lines.append(line)
        if self.alarm_at is None and any(alarm in line for alarm in _ALARMS):
            self.alarm_at = now
        return self.alarm_at is None and not line.startswith((*FRAMES, "Caused by:"))


def run(jar: Path, main: str, arguments: Sequence[str], seconds: int) -> int:
    """Run a topology for some seconds, then remove Storm's temporary files; return the exit code.

    Settings that local mode needs are added to Flux's file, the last of the ``arguments``.

    Raises:
        ComponentError: a component ended.
        StormError: the jar does not exist, or Storm ended with an error.
    """
    if not jar.is_file():
        raise StormError(f"{jar} does not exist", cure="`sparse run`, which makes it")
    logs = default_directory().absolute() / "logs"
    files.own(logs.parent, OURS)
    logs.mkdir(mode=0o700, exist_ok=True)
    files.write(logs / "local.xml", LOG4J)
    files.write(logs / "local.yaml", json.dumps({"executor.metrics.frequency.secs": 5}))
    with_timeouts(arguments)
    limit = "until Ctrl-C" if seconds == SLEEP_S_MAX else f"for {seconds} s"
    print(f"downspout: a local Storm {jars.STORM_VERSION} runs {limit}; its log: {logs / 'local.log'}", flush=True)
    with tempfile.TemporaryDirectory(prefix="downspout-storm-", ignore_cleanup_errors=True) as scratch:
        process = start_gated(
            command(jar, main, arguments, seconds, logs, scratch),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return _attend(process, logs, scratch)


def command(jar: Path, main: str, arguments: Sequence[str], seconds: int, logs: Path, scratch: str) -> list[str]:
    """Return the command that starts the JVM."""
    library = jars.resolve("storm")[0].parent
    found = [str(find_java()), "-Xmx768m", "-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Dstorm.jar={jar.absolute()}"]
    found += [f"-Dstorm.local.sleeptime={seconds}", f"-Dstorm.conf.file={logs / 'local.yaml'}"]
    found += [f"-Dstorm.log.dir={logs}", f"-Dlog4j.configurationFile={logs / 'local.xml'}"]
    # A LocalCluster leaves files of ZooKeeper and of its daemons in the temporary directory, so it gets its own. The
    # topology's jar must be first on the classpath: Storm takes ``resources/`` from the first jar with such a folder,
    # and Flux's jars have one.
    found += [f"-Djava.io.tmpdir={scratch}"]
    found += ["-cp", os.pathsep.join([str(jar.absolute()), f"{library}/*"]), "org.apache.storm.LocalCluster"]
    return [*found, main, *arguments]


def environment() -> dict[str, str]:
    """Return the environment of the JVM, which the components inherit."""
    programs = str(Path(sys.executable).parent)
    found = folders.worker_environment(Path.cwd())
    path = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    # Packed files precede installed ones: components start in the directory where their files were unpacked.
    return found | {"PATH": path, "PYTHONPATH": node_files.python_path(".:resources", found)}


def with_timeouts(arguments: Sequence[str]) -> None:
    """Enable message timeouts in Flux's file, which streamparse wrote for this run alone."""
    path = Path(arguments[-1]) if arguments else Path()
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    document = yaml.load(path.read_text(encoding="utf-8"))
    (document.setdefault("config", {})).setdefault("topology.enable.message.timeouts", True)
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(document, file)


# --- while it runs ---


def _attend(process: subprocess.Popen[bytes], logs: Path, scratch: str) -> int:
    jvm = ProcessIdentity.of(process.pid)
    watchdog = run_at_our_end("-P", "-c", WATCH, str(jvm.pid), jvm.birth, scratch)
    let_go(process)
    output, heard = _Output(), _listen(process)
    try:
        with _signals(process) as received:
            ended = _follow(heard, output)
    finally:
        if process.poll() is None or groups.members(process.pid):
            groups.end(jvm, END_S_MAX)
        process.wait()
        stop_watchdog(watchdog)
    if received:
        print("downspout: the local Storm is stopped", flush=True)
        return 128 + received[0]
    # Storm's shutdown kills the components and may exit with 1 because of their deaths; that is no failure.
    if not output.is_over and (output.alarm_at is not None or (ended and process.returncode != 0)):
        raise _failure(output, logs, process.returncode)
    return 0


def _listen(process: subprocess.Popen[bytes]) -> queue.Queue[str | None]:
    """Read the JVM's output in a thread; None marks its end."""
    heard: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as stream:
            for raw in stream:
                heard.put(raw.decode(errors="replace").rstrip("\n"))
        heard.put(None)

    threading.Thread(target=read, daemon=True).start()
    return heard


def _follow(heard: queue.Queue[str | None], output: _Output) -> bool:
    """Print output until the JVM ends or :data:`LISTEN_ON_S` after a component has; return whether the JVM ended."""
    clock = SYSTEM_CLOCK
    while True:
        now = clock.monotonic()
        if output.alarm_at is not None and now - output.alarm_at > LISTEN_ON_S:
            return False
        try:
            line = heard.get(timeout=0.2)
        except queue.Empty:
            continue
        if line is None:
            return True
        if output.hear(line, now):
            print(line, flush=True)


@contextmanager
def _signals(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Send the JVM SIGTERM on the first Ctrl-C or SIGTERM, SIGKILL on the next; yield the signals received."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        process.send_signal(signal.SIGTERM if len(received) == 1 else signal.SIGKILL)

    with handled_by(handle):
        yield received


def _failure(output: _Output, logs: Path, code: int) -> ComponentError | StormError:
    text = "\n".join(output.lines)
    cure = f"read {logs / 'local.log'}"
    said = python_part(text)
    if (died := ended_component(text)) is not None:
        name, how = died
        return ComponentError(
            f"The process of component {name} has ended ({how})" + (f":\n{said}\n" if said else ""), cure=cure
        )
    if said:
        return ComponentError(f"A component could not start:\n{said}\n", cure=cure)
    tail = "\n".join(line for line in output.lines if not line.startswith(FRAMES))[-1500:]
    return StormError(f"The local Storm ended with exit code {code}; its last lines:\n{tail}\n", cure=cure)


def watch(pid: int, born: str, scratch: str) -> None:
    """End the JVM's group and remove its files once the process that started it has ended."""
    await_end()
    groups.end(ProcessIdentity(pid, born), END_S_MAX)
    shutil.rmtree(scratch, ignore_errors=True)
