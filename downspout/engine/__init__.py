"""Storm's semantics in one process: graph, groupings, acker, tasks, loop."""
