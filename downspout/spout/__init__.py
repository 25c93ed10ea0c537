"""A spout in its consumer group: assignment, start offsets, reader, emitter, committer, retries, stalls."""
