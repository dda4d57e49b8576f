"""The command line `toolgraft`: one module per group of commands."""
