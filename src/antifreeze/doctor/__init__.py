"""Explains frozen loaders from outside, before, during and after training."""
