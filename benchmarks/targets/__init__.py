"""Programs of the library compiled for GPUs and TPUs; see ``python -m benchmarks.targets --help``."""
