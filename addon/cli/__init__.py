"""The command line `toolgraft`: one module a group of commands."""
