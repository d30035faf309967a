"""Speed benchmarks against named references, measured on one machine in one run."""
