"""The routes, one module a group: each has a `router`, and its line here. The most used come first: they are looked
for in this order."""

GROUPS = (
    "calls",
    "claims",
    "approvals",
    "sessions",
    "tools",
    "turns",
    "events",
    "store",
    "tokens",
    "mcp",
    "health",
)
