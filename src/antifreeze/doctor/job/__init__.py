"""While training: why a running job is stuck, seen from outside."""

from antifreeze.doctor.job._diagnosis import Confidence, Diagnosis, Suspect, Verdict
from antifreeze.doctor.job._job_command import diagnose

__all__ = ["Confidence", "Diagnosis", "Suspect", "Verdict", "diagnose"]
