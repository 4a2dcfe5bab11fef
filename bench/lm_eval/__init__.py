"""How far the samples of two runs of lm-eval are from one another."""
