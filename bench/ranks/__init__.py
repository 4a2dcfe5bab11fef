"""`make bench-ranks`: what a group of ranks costs."""
