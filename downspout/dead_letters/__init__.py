"""Dead letters: their format, and how they are written, read, replayed and purged."""
