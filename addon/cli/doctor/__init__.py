"""`toolgraft doctor`: what keeps the proxy or its clients from working, each problem with its fix. One module per group
of checks; nothing here changes anything."""
