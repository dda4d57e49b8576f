"""Tool sources: what lists tools and runs their calls. One module a kind; imports surfaces and core, nothing above."""
