"""Tools: the forms in which users write them, schemas, rules, and what a request declares."""
