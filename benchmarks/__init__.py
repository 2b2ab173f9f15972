"""One script, one question. Each writes JSON to benchmarks/results/."""
