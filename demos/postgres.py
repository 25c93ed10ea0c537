"""A PostgreSQL for demos and tests: Debian's programs, a cluster in a temporary folder, a free port."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downspout.errors import ComponentError
from downspout.system.loopback import free_port

START_S_MAX = 120.0
USER, PASSWORD = "downspout", "pass:word/%?"
"""A password with reserved characters of URLs, since it is never put into one."""


def find_programs() -> Path | None:
    """Return the folder with the newest initdb and postgres; None if not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


@dataclass
class PostgresServer:
    """A server that can be stopped and restarted."""

    programs: Path
    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    databases: int = 0
    options: dict[str, str] = field(default_factory=dict)

    @property
    def password_file(self) -> Path:
        """The file with the password, for ``file:`` references."""
        return self.folder / "password"

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> Any:
        """Return an autocommit connection."""
        import psycopg

        return psycopg.connect(self.url(database), password=PASSWORD, autocommit=True, connect_timeout=10)

    def new_database(self) -> str:
        """Create a database; return its URL."""
        self.databases += 1
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE test_{self.databases}")
        return self.url(f"test_{self.databases}")

    def initialise(self) -> None:
        """Create the cluster, as a user other than root, whom the server refuses."""
        self.password_file.write_text(PASSWORD)
        for path in (self.folder, self.password_file):
            if (owner := _unprivileged()) is not None:
                os.chown(path, owner.pw_uid, owner.pw_gid)
        command = ["initdb", "-D", "data", "-U", USER, "--auth=scram-sha-256", "--pwfile=password", "-E", "UTF8"]
        done = subprocess.run(
            [self.programs / command[0], *command[1:], "--no-sync", "--no-instructions", "--locale=C"],
            cwd=self.folder, capture_output=True, text=True, timeout=START_S_MAX, check=False, **_as_owner(),
        )  # fmt: skip
        if done.returncode != 0:
            raise ComponentError(f"PostgreSQL's initdb failed: {done.stdout}{done.stderr}")

    def start(self) -> None:
        """Start the server and wait until it answers; try another port if its port was taken meanwhile."""
        for _ in range(5):
            self.port = self.port or free_port()
            options = {
                "listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": str(self.folder),
                "fsync": "off", "max_connections": "30", "shared_buffers": "16MB", **self.options,
            }  # fmt: skip
            given = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
            with (self.folder / "log").open("ab") as log:
                self.process = subprocess.Popen(
                    [self.programs / "postgres", "-D", "data", *given],
                    cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, **_as_owner(),
                )  # fmt: skip
            if self._answers():
                return
            self.port = 0
        raise ComponentError(f"PostgreSQL does not start: {(self.folder / 'log').read_text(errors='replace')[-4000:]}")

    def _answers(self) -> bool:
        import psycopg

        assert self.process is not None
        until = time.monotonic() + START_S_MAX
        while self.process.poll() is None and time.monotonic() < until:
            with suppress(psycopg.OperationalError):
                self.connect().close()
                return True
            time.sleep(0.1)
        return False

    def stop(self, kind: signal.Signals = signal.SIGINT) -> None:
        """Stop the server (SIGINT: end connections at once; SIGQUIT: like a crash)."""
        if self.process is not None:
            self.process.send_signal(kind)
            self.process.wait(60)
            self.process = None


def _unprivileged() -> pwd.struct_passwd | None:
    """Return the user for the server; None: the current one, who is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    return None


def _as_owner() -> dict[str, Any]:
    owner = _unprivileged()
    return {} if owner is None else {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


@contextmanager
def postgres_server(programs: Path, options: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """Run a server with these options, and remove all of it at the end."""
    # If we are root, the server runs as another user, who cannot access every folder.
    folder = Path(tempfile.mkdtemp(prefix="downspout-postgres-", dir="/tmp"))
    server = PostgresServer(programs, folder, options=dict(options or {}))
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
