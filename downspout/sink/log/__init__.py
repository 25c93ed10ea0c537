"""The commit log of a directory: its entries, what they add up to, and the order in which they are created."""
