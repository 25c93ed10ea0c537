"""Offsets of consumer groups: seen, moved, and handed over between engines."""
