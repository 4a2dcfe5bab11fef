"""Tools of tests that measurements use, too: stand-ins for parts of the product, and tiny models."""
