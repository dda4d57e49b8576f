"""A strict local Gemini that refuses what Gemini refuses; upstream of the demo, the tests and the benchmarks."""
