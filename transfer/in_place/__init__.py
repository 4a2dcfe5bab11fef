"""KV that prefill writes straight into decode's pages: who may, and how a device does it."""
