"""One module a backend; only `store.factory` imports them."""
