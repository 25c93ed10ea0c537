"""A real Kafka on this machine: one broker, or a cluster of several.

To change how the embedded broker starts: embedded.py
To change how nodes form a cluster: cluster.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "cluster": "EmbeddedCluster OFFSETS_TOPIC partition_of_group",
        "embedded": "EmbeddedKafka default_directory find_access find_bootstrap",
    },
)
