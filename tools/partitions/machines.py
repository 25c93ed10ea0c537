"""Machines of a test: each is a network namespace with one cable to the switch, and packets can be dropped there.

The switch is the namespace of this process, which forwards packets from cable to cable. A rule of its routing table
drops those of one machine to another without a word: no reset, no "unreachable", as in a network that is cut. A rule is
about one direction. Traffic of this process with the machines is never dropped.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import NoReturn

INSIDE = "PARTITIONS_INSIDE"
"""Set in the process that has namespaces of its own."""
NEEDED = ("ip", "unshare", "mount", "hostname", "setpriv")
SHIM = Path(__file__).with_name("shim.c")
CONTROL = struct.Struct("5q")
AHEAD, DELAY, CLOCK_READ, DELAYED, REFUSED = range(5)
"""Fields of a machine's control file; see ``shim.c``."""
SYN_SENT, LISTENS = 2, 10


def missing() -> str | None:
    """Return why this machine has no room for machines; None: it has."""
    if sys.platform != "linux":
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root, for network namespaces"
    if programs := [name for name in NEEDED if shutil.which(name) is None]:
        return f"it needs the programs {', '.join(programs)}"
    trial = "mount -t tmpfs none /run && ip link add trial type veth peer name trial-too && ip rule add blackhole"
    tried = subprocess.run(
        [*NAMESPACES, "sh", "-c", trial], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return f"namespaces do not work here: {tried.stderr.strip()}" if tried.returncode else None


NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""All that is started, mounted and routed ends with the process that they are for, even by ``kill -9``."""


def go_inside(module: str, arguments: Sequence[str]) -> NoReturn:
    """Become a process that runs a module again, in namespaces of its own."""
    os.environ[INSIDE] = "1"
    os.execvp(NAMESPACES[0], [*NAMESPACES, sys.executable, "-m", module, *arguments])


def run(*command: str) -> None:
    """Run a program that must succeed."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


@dataclass
class Machine:
    """One machine.

    Attributes:
        name: of its namespace, and its host name.
        address: its own.
        folder: its files, ``home`` and ``tmp`` among them.
        shim: the library that :data:`SHIM` is compiled to; None: no compiler.
    """

    name: str
    address: str
    folder: Path
    shim: Path | None
    process: subprocess.Popen[bytes] | None = None
    control: mmap = field(init=False)

    def __post_init__(self) -> None:
        for name in ("home", "tmp"):
            (self.folder / name).mkdir(parents=True)
        path = self.folder / "control"
        path.write_bytes(bytes(CONTROL.size))
        path.chmod(0o666)
        with path.open("r+b") as file:
            self.control = mmap(file.fileno(), CONTROL.size)

    @property
    def log(self) -> Path:
        """What its process says."""
        return self.folder / "log"

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None, user: int = 0) -> None:
        """Start its process, in a session of its own."""
        self.process = self.spawn(command, environment, user)

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, user: int = 0
    ) -> subprocess.Popen[bytes]:
        """Start a program on it."""
        given = {**os.environ, "TMPDIR": str(self.folder / "tmp"), **(environment or {})}
        if self.shim is not None:
            given |= {"LD_PRELOAD": str(self.shim), "PARTITIONS_CONTROL": str(self.folder / "control")}
        as_user = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups") if user else ()
        # Each of these becomes the next one, so the process is the program in the end.
        full = ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", f'hostname {self.name}; exec "$@"']
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*full, "sh", *as_user, *command],
                cwd=self.folder, env=given, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    @property
    def exit_code(self) -> int | None:
        """How its process ended; None: it runs."""
        return None if self.process is None else self.process.poll()

    def pids(self) -> list[int]:
        """Return the processes that run on it."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True)
        return [int(pid) for pid in found.stdout.split()]

    def signal(self, number: int) -> None:
        """Send a signal to all processes on it."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def told(self, what: int) -> int:
        """Return a field of the control file."""
        return int(CONTROL.unpack(self.control[:])[what])

    def set(self, what: int, value: int) -> None:
        """Change a field of the control file."""
        self.control[8 * what : 8 * what + 8] = struct.pack("q", value)

    def sockets(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield its TCP sockets: the peer's address, the state, bytes sent and not received, bytes received unread."""
        for name in ("tcp", "tcp6"):
            try:
                assert self.process is not None
                lines = Path(f"/proc/{self.process.pid}/net/{name}").read_text().splitlines()[1:]
            except (OSError, AssertionError):
                continue
            for line in lines:
                _, _, remote, state, queues, *_ = line.split()
                address = ".".join(str(part) for part in reversed(bytes.fromhex(remote.partition(":")[0][-8:])))
                sent, received = (int(part, 16) for part in queues.split(":"))
                yield address, int(state, 16), sent, received

    def waits_for(self, other: Machine) -> bool:
        """Whether something that it sent to another machine has not arrived, or a connection has no answer."""
        return any(
            address == other.address and (state == SYN_SENT or (sent and state != LISTENS))
            for address, state, sent, _ in self.sockets()
        )

    def lets_wait(self) -> bool:
        """Whether something has arrived that its processes have not read, or a connection that none has accepted."""
        return any(received for _, _, _, received in self.sockets())


class Network:
    """The switch, the machines, and the small disks; there is one in a process, which has namespaces of its own.

    Args:
        folder: for the machines' files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.machines: dict[str, Machine] = {}
        self._cuts: list[tuple[str, str]] = []
        run("mount", "-t", "tmpfs", "none", "/run")
        run("ip", "link", "set", "lo", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self.shim = self._compiled()

    def _compiled(self) -> Path | None:
        if (compiler := shutil.which("cc")) is None:
            return None
        made = self._folder / "shim.so"
        run(compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(SHIM), "-ldl")
        return made

    def add(self, name: str) -> Machine:
        """Add a machine."""
        number = len(self.machines) + 1
        machine = Machine(name, f"10.77.{number}.2", self._folder / name, self.shim)
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "address", "add", f"10.77.{number}.1/24", "dev", f"port{number}")
        run("ip", "link", "set", f"port{number}", "up")
        for words in (
            "link set lo up", f"address add {machine.address}/24 dev eth0", "link set eth0 up",
            f"route add default via 10.77.{number}.1",
        ):  # fmt: skip
            run("ip", "-n", name, *words.split())
        self.machines[name] = machine
        return machine

    def disk(self, name: str, size: str) -> Path:
        """Add a small disk; return its folder."""
        folder = self._folder / name
        folder.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "none", str(folder))
        return folder

    def cut(self, source: Machine, target: Machine) -> None:
        """Drop what one machine sends to another."""
        run("ip", "rule", "add", "from", source.address, "to", target.address, "blackhole")

    def mend(self, source: Machine, target: Machine) -> None:
        """Undo :meth:`cut`."""
        run("ip", "rule", "del", "from", source.address, "to", target.address, "blackhole")

    def end(self) -> None:
        """Kill what still runs."""
        for machine in self.machines.values():
            machine.signal(signal.SIGKILL)


def fill(folder: Path) -> None:
    """Leave no byte of a small disk."""
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
