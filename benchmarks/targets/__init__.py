"""Programs of the library compiled for described GPUs and TPUs."""
