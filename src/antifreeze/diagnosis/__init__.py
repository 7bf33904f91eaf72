"""Why something stalled or exited: evidence, causes and the report."""

from antifreeze.diagnosis._causes import Cause
from antifreeze.diagnosis._findings import STARTING, Evidence, Finding, ProcSnapshot, Target, TargetKind, find_cause
from antifreeze.diagnosis._history import History, SkipLog, open_skip_log
from antifreeze.diagnosis._policy import (
    Beat,
    decide,
    loading_s,
    loading_still_s,
    loading_warn_s,
    warn_after_s,
)
from antifreeze.diagnosis._proc import (
    Counters,
    Look,
    evidence_of,
    memory_groups,
    memory_limits,
    oom_kills,
    read_counters,
    read_proc,
    rss_of,
    state_of,
)
from antifreeze.diagnosis._report import STAGES, Report, Restart, Skip, advice
from antifreeze.diagnosis._stack import Frame, is_ours, is_standard, is_user, parse_stack, user_frames

__all__ = [
    "Beat",
    "Cause",
    "Counters",
    "Evidence",
    "Finding",
    "Frame",
    "History",
    "Look",
    "ProcSnapshot",
    "Report",
    "Restart",
    "STAGES",
    "STARTING",
    "Skip",
    "SkipLog",
    "Target",
    "TargetKind",
    "advice",
    "decide",
    "evidence_of",
    "find_cause",
    "is_ours",
    "is_standard",
    "is_user",
    "loading_s",
    "loading_still_s",
    "loading_warn_s",
    "memory_groups",
    "memory_limits",
    "oom_kills",
    "open_skip_log",
    "parse_stack",
    "read_counters",
    "read_proc",
    "rss_of",
    "state_of",
    "user_frames",
    "warn_after_s",
]
