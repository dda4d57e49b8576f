"""A backend is the module of its name, made of those whose names begin with it. Only `store.factory` imports it."""
