"""Where rows leave: the exactly-once Parquet writer, its commit log, and the audit."""
