"""What toolgraft costs: every figure is a ratio, or added milliseconds, measured side by side in one run.

`python -m bench` measures everything; `python -m bench.proxy`, `.agent`, `.stream`, `.loop`, `.doors`, `.store`,
`.control` and `.memory` one table each. docs/benchmarks.md says how. Nothing here is part of the product, and the
product imports none of it.
"""
