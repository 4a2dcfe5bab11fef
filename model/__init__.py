"""Compute: checkpoints, layers, attention, KV storage, sampling. Knows nothing of requests, sockets or schedules."""
