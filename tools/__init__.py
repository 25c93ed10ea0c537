"""Programs for people who work on Downspout itself."""
