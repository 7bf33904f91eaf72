"""The troubleshooting page, one section at a time, from the installed version."""

from antifreeze.doctor.explain._explain_command import Kind, Topic, main, read_topics

__all__ = ["Kind", "Topic", "main", "read_topics"]
