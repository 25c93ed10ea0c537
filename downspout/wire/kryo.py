"""The classes that Storm must know so that values get from one worker to another.

Storm's JSON parser makes objects of its own for lists, dicts and floats of 17 digits. Between two workers tuples
travel by Kryo, which refuses classes that are not registered, and ends the worker. Nimbus adds up what the topology
and its components register (``Nimbus.normalizeConf``), so a spout can do it for its topology.
"""

KRYO_CLASSES = (
    "org.apache.storm.shade.net.minidev.json.JSONArray",
    "org.apache.storm.shade.net.minidev.json.JSONObject",
    "java.math.BigDecimal",
)
"""What a list, a dict and such a float are in the JVM of Storm 2.8."""

KRYO = {"topology.kryo.register": list(KRYO_CLASSES)}
"""The same as configuration, of a topology, a component or a cluster."""
