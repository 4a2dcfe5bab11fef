"""The unified worker: prefill and decode in one process, without a transfer."""
