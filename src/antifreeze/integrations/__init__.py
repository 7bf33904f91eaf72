"""Frameworks that build their own loaders."""

__all__ = []
