"""`make bench-memory`: what prefix caches save."""
