"""Computes: weights, attention, sampling, KV memory. It knows no request."""
