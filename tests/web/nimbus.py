"""A nimbus that a test makes up: the Thrift answers for a topology of two bolts, one of which also reads its spout."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

from streamparse import Grouping, Topology

from spouts.kafka import KafkaSpout
from tests.web.running import GROUP, SCRIPT, TOPIC, CheckBolt, CountBolt

UPTIME_S = 3_600
TRACEBACK = f'Traceback (most recent call last):\n  File "check.py", line 3, in process\nValueError: {SCRIPT}'


class OnStorm(Topology):
    reader = KafkaSpout.spec(topics=[TOPIC], group=GROUP, fields=["origin", "value"])
    check = CheckBolt.spec(inputs=[reader], par=2)
    count = CountBolt.spec(inputs={check: Grouping.fields("value"), reader: Grouping.ALL})


class Nimbus:
    """Answers as nimbus does. ``status`` and ``scale`` may be changed between questions."""

    executed: ClassVar[dict[str, int]] = {"600": 6_000, ":all-time": 90_000}

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap, self.status, self.scale, self.error = bootstrap, "ACTIVE", 1.0, TRACEBACK
        self.asked: set[tuple[str, int]] = set()  # the addresses at which it was asked

    @contextmanager
    def connect(self, host: str, port: int, timeout_s: float = 1.0) -> Iterator[Nimbus]:
        self.asked.add((host, port))
        yield self

    def getClusterInfo(self) -> Any:
        found = SimpleNamespace(name="shop", id="shop-1-2", status=self.status, uptime_secs=UPTIME_S, num_workers=1)
        return SimpleNamespace(topologies=[found] if self.status else [])

    def getTopologyPageInfo(self, topology: str, window: str, is_sys_included: bool) -> Any:
        done = int(self.executed[window] * self.scale)

        def counts(tasks: int, **specific: Any) -> Any:
            common = SimpleNamespace(num_tasks=tasks, emitted=done, acked=done - 10, failed=10)
            return SimpleNamespace(common_stats=common, specific_stats=SimpleNamespace(**specific))

        bolt = SimpleNamespace(executed=done, execute_latency_ms=0.5, process_latency_ms=2.5, capacity=0.25)
        return SimpleNamespace(
            id_to_spout_agg_stats={"reader": counts(1, spout=SimpleNamespace(complete_latency_ms=40.0), bolt=None)},
            id_to_bolt_agg_stats={
                "check": counts(2, bolt=bolt, spout=None),
                "count": counts(1, bolt=bolt, spout=None),
            },
        )

    def getTopologyInfo(self, topology: str) -> Any:
        errors = {"check": [SimpleNamespace(error=self.error, error_time_secs=5)]} if self.error else {}
        return SimpleNamespace(errors=errors, executors=[SimpleNamespace(stats=object())])

    def getTopology(self, topology: str) -> Any:
        submitted = copy.deepcopy(OnStorm.thrift_topology)
        shell = submitted.bolts["check"].bolt_object.shell
        shell.script = f"-s json {shell.script}"  # as `sparse submit` has it
        return submitted

    getUserTopology = getTopology

    def getTopologyConf(self, topology: str) -> str:
        conf = {"kafka.bootstrap": self.bootstrap, "kafka.client.sasl_plain_password": "hush", "storm.id": "shop-1-2"}
        return json.dumps(conf)
