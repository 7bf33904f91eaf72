"""The bars of the worker engine: `antifreeze.DataLoader` beside torch's, on the same datasets, in the same minutes."""
