"""What toolgraft costs: every figure is a ratio, or added milliseconds, measured side by side in one run.

docs/benchmarks.md has the table and says how it is measured. Nothing here is part of the product, and the product
imports none of it.
"""
