"""Measurements from within: they look into every room, and only a checkout has them."""
