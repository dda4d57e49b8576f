"""The routes, one module per group. Each has a `router` and a line here. Routes are matched in this order, so the most
used come first."""

GROUPS = (
    "calls",
    "claims",
    "approvals",
    "sessions",
    "tools",
    "tries",
    "turns",
    "requests",
    "events",
    "tokens",
    "mcp",
    "servers",
    "config",
    "health",
)
