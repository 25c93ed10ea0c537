"""Where a sink's files are, and the few operations by which they are written, moved and read."""
