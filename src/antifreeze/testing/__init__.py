"""Tools for those who write their own formats: suites that check a promise. Needs pytest."""

from antifreeze.testing._formats import FormatSuite

__all__ = ["FormatSuite"]
