"""What the load generator itself can do, on a server that does nothing but answer."""
