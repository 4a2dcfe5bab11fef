"""The sender of a prefill worker."""
