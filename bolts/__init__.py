"""Bolts: each one file; the logic is a plain function, the class is its shell."""
