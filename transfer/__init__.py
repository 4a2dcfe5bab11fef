"""Moving KV pages between a prefill worker and a decode worker."""
