"""One command for all measurements: `python -m benchmarks --help`. docs/benchmarks.md says what each figure is."""
