"""The only place that imports mitmproxy: thin hooks, options, and the composition root."""
