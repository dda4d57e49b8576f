"""Each backend is one public module, with private modules whose names begin with its name."""
