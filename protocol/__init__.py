"""Words that every room shares: ids, requests, messages, errors, KV layout. No torch, no zmq."""
