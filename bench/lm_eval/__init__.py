"""How far two runs of lm-eval are from one another, and small tasks for it."""
