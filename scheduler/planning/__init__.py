"""Decides: who holds which row and pages, what the next launch computes. Never imports torch."""
