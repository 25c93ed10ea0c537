"""Storm in one process: graph, groupings, acker, engine, live view."""
