"""What toolgraft costs: every figure is a ratio, or added milliseconds, measured side by side in one run.

`python -m bench` measures everything, `python -m bench.NAME` one table. docs/benchmarks.md lists them and says how they
are measured. Nothing here is part of the product, and the product imports none of it.
"""
