"""The names of Storm's settings of a topology, and which of them a wrong one was meant to be."""

from __future__ import annotations

from difflib import SequenceMatcher

PREFIX = "topology."
PART_CUTOFF = 0.85
CUTOFF = 0.7
NAMES = """
acker.cpu.pcore.percent acker.executors acker.resources.offheap.memory.mb acker.resources.onheap.memory.mb
auto-credentials auto.task.hooks backpressure.check.millis backpressure.enable backpressure.wait.park.microsec
backpressure.wait.progressive.level1.count backpressure.wait.progressive.level2.count
backpressure.wait.progressive.level3.sleep.millis backpressure.wait.strategy batch.flush.interval.millis
blobstore.map bolt.wait.park.microsec bolt.wait.progressive.level1.count bolt.wait.progressive.level2.count
bolt.wait.progressive.level3.sleep.millis bolt.wait.strategy bolts.late.tuple.stream bolts.message.id.field.name
bolts.tuple.timestamp.max.lag.ms bolts.watermark.event.interval.ms bolts.window.length.count
bolts.window.length.duration.ms bolts.window.sliding.interval.count bolts.window.sliding.interval.duration.ms
builtin.metrics.bucket.size.secs classpath classpath.beginning component.cpu.pcore.percent component.resources.map
component.resources.onheap.memory.mb debug disable.loadaware.messaging enable.message.timeouts
enable.send.iconnection.metrics enable.v2.metrics.tick environment error.throttle.interval.secs
event.logger.register eventlogger.executors executor.overflow.limit executor.receive.buffer.size
fall.back.on.java.serialization groups isolate.machines kryo.decorators kryo.factory kryo.register
localityaware.higher.bound localityaware.lower.bound logging.config logging.sensitivity
max.error.report.per.interval max.replication.wait.time.sec max.spout.pending max.task.parallelism
message.timeout.secs metrics.consumer.cpu.pcore.percent metrics.consumer.register
metrics.consumer.resources.offheap.memory.mb metrics.consumer.resources.onheap.memory.mb metrics.reporters
min.replication.count multilang.log.handler multilang.serializer name oci.image priority producer.batch.size
python.path ras.acker.executors.per.worker ras.constraint.max.state.search ras.constraint.max.time.secs
ras.constraints ras.one.component.per.worker ras.one.executor.per.worker ras.order.executors.by.proximity.needs
readonly.groups readonly.users scheduler.favored.nodes scheduler.strategy scheduler.unfavored.nodes
serialized.message.size.metrics shellbolt.max.pending skip.missing.kryo.registrations
sleep.spout.wait.strategy.time.ms spout.recvq.skips spout.wait.park.microsec spout.wait.progressive.level1.count
spout.wait.progressive.level2.count spout.wait.progressive.level3.sleep.millis spout.wait.strategy spread.components
state.checkpoint.interval.ms state.kryo.register state.provider state.provider.config
state.synchronization.timeout.secs stats.sample.rate submitter.principal submitter.user subprocess.timeout.secs
tasks testing.always.try.serialize tick.tuple.freq.secs transactional.id transfer.batch.size transfer.buffer.size
trident.batch.emit.interval.millis trident.windowing.cache.tuple.limit tuple.serializer users
v2.metrics.tick.interval.seconds version worker.childopts worker.gc.childopts worker.logwriter.childopts
worker.max.heap.size.mb worker.metrics worker.nimbus.thrift.client.use.tls worker.shared.thread.pool.size
worker.timeout.secs workers
"""
"""What Storm 2.8's ``org.apache.storm.Config`` has below ``topology.``, and what streamparse adds."""
KNOWN = frozenset(NAMES.split())


def meant(key: str) -> str | None:
    """Return the setting of Storm's that an unknown key is close to; None: it is known, or close to none.

    A key is compared part by part, so one that lacks a part, or has the unit wrong, is close.

    >>> [meant(f"topology.{name}") for name in ("debugg", "message.timeout.ms", "ackers", "debug", "region")]
    ['topology.debug', 'topology.message.timeout.secs', 'topology.acker.executors', None, None]
    >>> meant("storm.message.timeout.secs"), meant("storm.local.dir")
    ('topology.message.timeout.secs', None)
    """
    prefix, _, name = key.partition(".")
    if prefix == "storm" and name in KNOWN:
        return PREFIX + name
    if prefix != "topology" or name in KNOWN:
        return None
    close = {known: found for known in KNOWN if (found := _closeness(name, known)) >= CUTOFF}
    near = max(close, key=lambda known: (close[known] + _ratio(name, known), known), default=None)
    return None if near is None else PREFIX + near


def _closeness(name: str, known: str) -> float:
    """Return how well the parts of a name are found in a known one, 0 to 1; what is no mere slip counts half."""
    others = known.split(".")
    best = [max(_ratio(part, other) for other in others) for part in name.split(".")]
    return sum(ratio if ratio >= PART_CUTOFF else ratio / 2 for ratio in best) / len(best)


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
