"""Tools: the forms in which users write them, schemas, rules, and the declarations in a request."""
