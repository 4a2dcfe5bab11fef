"""The rules a worker's step is decided by, for every role."""
