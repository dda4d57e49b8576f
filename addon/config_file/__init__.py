"""toolgraft.toml: finds it, reads and checks it, and applies what it says."""
