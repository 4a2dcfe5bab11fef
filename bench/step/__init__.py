"""`make bench-step`: what a decode step costs."""
