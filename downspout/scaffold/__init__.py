"""A new project, its columns inferred from records: ``downspout new``."""
