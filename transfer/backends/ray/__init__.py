"""KV over Ray."""
