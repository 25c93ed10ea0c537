"""Records out to Kafka: what a tuple becomes, where it goes, which tuples are done. Its shell: ``bolts/kafka.py``."""
