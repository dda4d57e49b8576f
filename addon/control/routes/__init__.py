"""The routes, one module per group, each with a `router`. They are matched in this order, the most used first."""

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
