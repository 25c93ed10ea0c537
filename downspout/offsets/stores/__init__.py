"""Offset stores beside Kafka's own group, behind the port ``downspout/spout/ports.py``; the databases among them
serve the SqlBolt too.
"""
