"""The model: configuration, weights, attention, forward passes."""
