"""Moves KV from prefill to decode: which bytes go where, the two ends, writes in place, backends."""
