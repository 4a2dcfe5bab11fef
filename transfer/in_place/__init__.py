"""Writes KV into the other side's pages: which workers may, and how a device does it."""
