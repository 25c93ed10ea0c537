"""The consumer group: which partitions are ours, where they start, what is committed and handed over."""
