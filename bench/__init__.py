"""Measurements of Baton's inner parts. They import every room, and only a checkout has them."""
