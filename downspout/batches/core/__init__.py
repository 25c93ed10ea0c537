"""The pure core of batch transactions: no I/O, no clock; it imports the standard library alone."""
