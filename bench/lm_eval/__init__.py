"""`make bench-grammar`: what answers in a grammar cost."""
