"""Readers that go through the commit log: snapshots, Arrow tables, and streams."""
