"""This machine: processes, locks, files of one owner, jars, Java, and what a Python elsewhere needs."""
