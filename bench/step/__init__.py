"""`make bench-overlap`: what a decode step costs, and what overlap hides of it."""
