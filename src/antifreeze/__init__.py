"""A streaming data loader for PyTorch that cannot freeze."""
