"""Frameworks that build loaders of their own."""

__all__ = []
