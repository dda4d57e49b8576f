"""Thin hooks of mitmproxy, and the composition root. Elsewhere only `config_file` imports mitmproxy, to check values."""
