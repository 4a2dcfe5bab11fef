"""KV over Ray: frames as arguments of calls."""
