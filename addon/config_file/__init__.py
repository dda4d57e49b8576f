"""toolgraft.toml: finds, reads, checks and applies it."""
