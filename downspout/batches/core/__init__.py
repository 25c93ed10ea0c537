"""The pure core of batch transactions: no I/O, no clock."""
