"""A strict local Gemini, which refuses what Gemini refuses: the upstream of the demo, the tests and the benchmarks."""
