"""The cost of toolgraft: every figure is a ratio, or added milliseconds, measured side by side in one run.

docs/benchmarks.md has the table and describes the measurement. The product does not import this package.
"""
