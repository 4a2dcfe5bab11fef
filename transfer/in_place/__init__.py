"""KV that prefill writes straight into decode's pages: which workers may, and how a device does it."""
