"""`toolgraft doctor`: finds problems of the proxy and its clients, each with its fix. One module per group of checks;
no check changes anything."""
