"""The servers, the workers, the feed and the checker, each on its machine; and the execution of faults."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError

from demos.postgres import find_programs
from demos.s3 import KEYS
from downspout.broker import broker_files
from downspout.errors import BrokerError
from downspout.kafka import KafkaCluster
from downspout.system import jars
from downspout.system.java import java as find_java
from tools.partitions import flows, machines
from tools.partitions.machines import Machine, Network
from tools.partitions.schedule import BROKERS, STORES, WORKERS, Fault
from tools.waiting import LOOK_S, wait_turning

ROOT = Path(__file__).parents[2]
TOPIC, PARTITIONS = "numbers", 6
PORT, CONTROLLER_PORT, S3_PORT, PG_PORT = 9092, 9093, 9000, 5432
START_S_MAX = 300.0
DISK_BYTES = "256m"
FALLEN_MAX = 12
GOOD_ENDS = (0, 128 + signal.SIGTERM)
FLOWS = {"disk": "ToFiles", "s3": "ToFiles", "kafka": "ToKafka", "sql": "ToSql"}
IPV4 = "-Djava.net.preferIPv4Stack=true"


class Stage:
    """All of it.

    Args:
        folder: for everything.
        sink: a key of :data:`~tools.partitions.schedule.STORES`.
        rate: records a second.
    """

    def __init__(self, folder: Path, sink: str, rate: float) -> None:
        folder.chmod(0o755)  # PostgreSQL does not run as root
        self._folder, self._sink, self._rate = folder, sink, rate
        self.network = Network(folder)
        self.disk: Path | None = None
        self.on_turn: Callable[[], object] = lambda: None
        self.fallen: list[str] = []
        """Workers that ended by themselves, with their last words."""
        self.status: dict[str, Any] = {"at": 0.0, "acknowledged": 0, "waiting": 0, "oldest": None}
        """What the checker said last."""
        self.verdict: dict[str, Any] = {}
        self._acknowledged = folder / "acknowledged"
        self._settings: dict[str, object] = {}
        self._environment: dict[str, str] = {}
        self._feeds = True
        self._feed: subprocess.Popen[str]
        self._checker: subprocess.Popen[str]
        self._reader: threading.Thread

    def machine(self, name: str) -> Machine:
        """Return a machine."""
        return self.network.machines[name]

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(f"{self.machine(name).address}:{PORT}" for name in BROKERS)

    # --- starting ---

    def start(self) -> None:
        """Start all, and wait until the first records have got to the output."""
        store = STORES[self._sink]
        for name in (*BROKERS, *WORKERS, *([store] if store else [])):
            self.network.add(name)
        self._start_brokers()
        self._settings = {**flows.SETTINGS, "kafka.bootstrap": self.bootstrap}
        where = {"disk": self._on_disk, "s3": self._on_s3, "kafka": lambda: self.bootstrap, "sql": self._on_sql}[
            self._sink
        ]()

        def made() -> bool:
            cluster = KafkaCluster(self.bootstrap)
            cluster.ensure_topic(TOPIC, PARTITIONS)
            cluster.ensure_topic("copies", PARTITIONS)
            return True

        await_(made, "the brokers")
        programs = Path(__file__).parent
        self._feed = _program(programs / "feed.py", self.bootstrap, TOPIC, PARTITIONS, self._rate, self._acknowledged)
        self._checker = _program(programs / "checker.py", self._sink, where, self._acknowledged, self.bootstrap)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        for name in WORKERS:
            self._start_worker(name)
        if not self.wait(lambda: self.status["acknowledged"] > self.status["waiting"], START_S_MAX):
            raise BrokerError("the workers write nothing", cure=f"see {self.machine(WORKERS[0]).log}")

    def _start_brokers(self) -> None:
        library, java = jars.resolve("kafka")[0].parent, find_java()
        command = [str(java), IPV4, *broker_files.JVM_FLAGS, "-cp", f"{library}/*"]
        cluster_id = broker_files.new_cluster_id()
        voters = ",".join(
            f"{number}@{self.machine(name).address}:{CONTROLLER_PORT}" for number, name in enumerate(BROKERS, 1)
        )
        replicated = (
            "default.replication.factor", "offsets.topic.replication.factor",
            "transaction.state.log.replication.factor", "share.coordinator.state.topic.replication.factor",
        )  # fmt: skip
        needed = ("min.insync.replicas", "transaction.state.log.min.isr", "share.coordinator.state.topic.min.isr")
        formats = []
        for number, name in enumerate(BROKERS, 1):
            machine = self.machine(name)
            clients = f"PLAINTEXT://{machine.address}:{PORT}"
            given = {
                "node.id": str(number), "controller.quorum.voters": voters, "advertised.listeners": clients,
                "listeners": f"{clients},CONTROLLER://{machine.address}:{CONTROLLER_PORT}",
                **dict.fromkeys(replicated, "3"), **dict.fromkeys(needed, "2"), "replica.lag.time.max.ms": "5000",
                "broker.heartbeat.interval.ms": "1000", "broker.session.timeout.ms": "5000",
            }  # fmt: skip
            text = broker_files.server_properties(PORT, CONTROLLER_PORT, given)
            (machine.folder / "server.properties").write_text(text)
            (machine.folder / "log4j2.properties").write_text(broker_files.LOG4J)
            (machine.folder / "logs").mkdir()
            tool = [*command, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", "server.properties"]
            formats.append(machine.spawn(tool))
        for each in formats:
            assert each.wait(START_S_MAX) == 0, [self.machine(name).log.read_text() for name in BROKERS]
        for name in BROKERS:
            self.machine(name).start([*command, "kafka.Kafka", "server.properties"])

    def _on_disk(self) -> str:
        self.disk = self.network.disk("disk", DISK_BYTES)
        self._settings["parquet.directory"] = self.disk / "out"
        return str(self.disk / "out")

    def _on_s3(self) -> str:
        machine = self.machine("s3")
        url = f"http://{machine.address}:{S3_PORT}"
        lines = {
            "s3proxy.endpoint": url, "s3proxy.authorization": "none", "jclouds.provider": "transient-nio2",
            "jclouds.identity": "test", "jclouds.credential": "test",
        }  # fmt: skip
        properties = machine.folder / "s3proxy.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
        jar = str(jars.resolve("s3proxy")[0])
        machine.start([str(find_java()), IPV4, "-Xmx512m", "-jar", jar, "--properties", str(properties)])
        from urllib.request import Request, urlopen

        await_(lambda: urlopen(Request(f"{url}/bucket", method="PUT"), timeout=10).status == 200, "the S3 server")
        self._settings["parquet.directory"] = "s3://bucket/out"
        self._environment = {**KEYS, "AWS_ENDPOINT_URL": url}
        return url

    def _on_sql(self) -> str:
        import psycopg

        machine, programs = self.machine("pg"), find_programs()
        if programs is None:
            raise BrokerError("PostgreSQL is not installed", cure="apt-get install postgresql")
        try:
            user = pwd.getpwnam("postgres").pw_uid
        except KeyError:
            user = pwd.getpwnam("nobody").pw_uid
        self.disk = self.network.disk("disk", DISK_BYTES)
        for folder in (machine.folder, machine.folder / "tmp", self.disk):
            os.chown(folder, user, user)
        initdb = [str(programs / "initdb"), "-D", "data", "-U", "downspout", "--auth=trust", "-E", "UTF8"]
        assert machine.spawn([*initdb, "--locale=C", "--no-sync"], user=user).wait(START_S_MAX) == 0
        with (machine.folder / "data" / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.77.0.0/16 trust\n")
        options = {
            "listen_addresses": "*", "port": PG_PORT, "unix_socket_directories": machine.folder,
            "shared_buffers": "16MB", "max_connections": 50,
        }  # fmt: skip
        given = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        machine.start([str(programs / "postgres"), "-D", "data", *given], user=user)
        url = f"postgresql://downspout@{machine.address}:{PG_PORT}/postgres"

        def prepared() -> bool:
            with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
                # What fills up is the disk of the tables: without room for its log PostgreSQL itself gives up.
                connection.execute(f"CREATE TABLESPACE small LOCATION '{self.disk}'")
                connection.execute("ALTER DATABASE postgres SET default_tablespace = small")
            with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
                connection.execute("CREATE TABLE numbers (id BIGINT NOT NULL, text TEXT NOT NULL)")
                connection.execute("CREATE INDEX ON numbers (id)")
            return True

        await_(prepared, "PostgreSQL")
        self._settings |= {"sql.database": url, "kafka.offset_store": url}
        return url

    def _start_worker(self, name: str) -> None:
        machine = self.machine(name)
        command = [sys.executable, "-m", "downspout", "run", str(Path(__file__).with_name("flows.py"))]
        command += ["--topology", FLOWS[self._sink], "--member", name[1:]]
        command += [f"--set={key}={value}" for key, value in self._settings.items()]
        command += ["--quiet"]
        home = {"PYTHONPATH": str(ROOT), "DOWNSPOUT_HOME": str(machine.folder / "home"), **self._environment}
        machine.start(command, home)

    def _read(self) -> None:
        assert self._checker.stdout is not None
        for line in self._checker.stdout:
            told = json.loads(line)
            if "lost" in told:
                self.verdict = told
            elif "at" in told:
                self.status = told

    # --- while it runs ---

    def turn(self) -> None:
        """Start a worker again that has ended, as a supervisor would."""
        self.on_turn()
        for name in WORKERS:
            machine = self.machine(name)
            if machine.exit_code is not None:
                words = machine.log.read_text(errors="replace").splitlines()[-1]
                self.fallen.append(f"{name} ended with {machine.exit_code}: {words}")
                if len(self.fallen) > FALLEN_MAX:
                    raise BrokerError("; ".join(self.fallen), cure=f"see {machine.log}")
                self._start_worker(name)
        for name, machine in self.network.machines.items():
            if name not in WORKERS and machine.exit_code is not None:
                raise BrokerError(f"{name} ended with {machine.exit_code}", cure=f"see {machine.log}")
        if self._checker.poll() is not None or (self._feeds and self._feed.poll() is not None):
            raise BrokerError("the feed or the checker has ended", cure="see their standard error")

    def wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds; return whether it does."""
        return wait_turning(holds, seconds, self.turn)

    def do(self, fault: Fault) -> bool:
        """Do it and undo it; return whether something was in flight that met it."""
        victim, others = self.machine(fault.victim), [self.machine(name) for name in fault.others]
        pairs = [(a, b) for other in others for a, b in ((victim, other), (other, victim))]
        if fault.kind == "one-way":
            pairs = [pair for pair in pairs if (pair[1] is victim) == fault.inwards]
        shared = fault.kind == "full" and self._sink == "disk"
        writers = [self.machine(name) for name in WORKERS] if shared else [victim]
        counter = {"clock": machines.CLOCK_READ, "slow": machines.DELAYED, "full": machines.REFUSED}.get(fault.kind)

        def count() -> int:
            return 0 if counter is None else sum(machine.told(counter) for machine in writers)

        hit, end, before = False, time.monotonic() + fault.lasts_s, count()

        def last(until: float) -> None:
            nonlocal hit
            while (now := time.monotonic()) < until:
                if fault.kind == "pause":
                    hit = hit or victim.lets_wait()
                elif counter is None:
                    hit = hit or any(source.waits_for(target) for source, target in pairs)
                self.turn()
                time.sleep(min(LOOK_S, until - now))
            hit = hit or count() > before

        if fault.kind in ("cut", "one-way", "flapping"):
            flaps = iter(fault.flaps_s or [fault.lasts_s])
            while (left := end - time.monotonic()) > 0:
                for pair in pairs:
                    self.network.cut(*pair)
                try:
                    last(min(end, time.monotonic() + next(flaps, left)))
                finally:
                    for pair in pairs:
                        self.network.mend(*pair)
                last(min(end, time.monotonic() + next(flaps, left)))
            return hit
        begin, undo = self._switch(fault, victim)
        try:
            begin()
            last(time.monotonic() + fault.lasts_s)
        finally:
            undo()
        return hit

    def _switch(self, fault: Fault, victim: Machine) -> tuple[Callable[[], object], Callable[[], object]]:
        if fault.kind == "pause":
            return lambda: victim.signal(signal.SIGSTOP), lambda: victim.signal(signal.SIGCONT)
        if fault.kind == "clock":
            return (
                lambda: victim.set(machines.AHEAD, round(fault.by * 1e9)),
                lambda: victim.set(machines.AHEAD, 0),
            )
        if fault.kind == "slow":
            return lambda: victim.set(machines.DELAY, round(fault.by * 1e6)), lambda: victim.set(machines.DELAY, 0)
        assert self.disk is not None
        disk = self.disk
        return lambda: machines.fill(disk), lambda: (disk / "filler").unlink(missing_ok=True)

    # --- the end ---

    def stop_feeding(self) -> int:
        """Write no more, and wait for all answers; return how many records there are."""
        self._feeds = False
        self._feed.terminate()
        said, _ = self._feed.communicate(timeout=START_S_MAX)
        sent, failed = map(int, said.split())
        if failed:
            self.fallen.append(f"{failed} records were refused by the brokers")
        return sent

    def stop_workers(self) -> list[int | None]:
        """Ask the workers to end; return their exit codes."""
        workers = [self.machine(name) for name in WORKERS]
        for machine in workers:
            assert machine.process is not None
            machine.process.terminate()
        for machine in workers:
            with suppress(subprocess.TimeoutExpired):
                assert machine.process is not None
                machine.process.wait(START_S_MAX)
        return [machine.exit_code for machine in workers]

    def compare(self, sent: int) -> None:
        """Let the checker compare."""
        assert self._checker.stdin is not None
        self._checker.stdin.write(f"end {sent}\n")
        self._checker.stdin.close()
        self._checker.wait(START_S_MAX)
        self._reader.join(START_S_MAX)

    def end(self) -> None:
        """Kill what still runs; the namespaces end with this process."""
        self.network.end()


def _program(path: Path, *arguments: object) -> subprocess.Popen[str]:
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": ""}
    return subprocess.Popen(
        [sys.executable, str(path), *map(str, arguments)],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def await_(holds: Callable[[], bool], what: str) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + START_S_MAX
    while True:
        try:
            if holds():
                return
        except (OSError, BrokerError, KafkaError, ImportError) as error:
            trouble: Exception = error
        except Exception as error:
            if not type(error).__module__.startswith("psycopg"):
                raise
            trouble = error
        if time.monotonic() > end:
            raise BrokerError(f"{what} did not answer within {START_S_MAX:g} s: {trouble}", cure="see its log")
        time.sleep(0.5)
