"""The process that workers are born in. It has imported what they need and has run nothing."""

from antifreeze.nursery._nurse import Bear, Born, Bury, Died, Hello, Load, kill_group

__all__ = ["Bear", "Born", "Bury", "Died", "Hello", "Load", "kill_group"]
