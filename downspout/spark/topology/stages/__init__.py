"""What runs in the tasks of Spark: stages, where their tuples come from, and what leaves them."""
