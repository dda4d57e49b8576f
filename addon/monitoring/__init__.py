"""What the proxy keeps and shows about itself, in memory, without secrets."""
