"""What happened to each record: pure, no I/O, no clock, no threads."""
