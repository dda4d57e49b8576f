"""toolgraft.toml: chooses, reads, checks and applies it."""
