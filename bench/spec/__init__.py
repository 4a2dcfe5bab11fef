"""`make bench-spec`: what speculative decoding costs and saves."""
