"""Thin hooks of mitmproxy, and the composition root. Besides, only `config_file` imports mitmproxy, to check values."""
