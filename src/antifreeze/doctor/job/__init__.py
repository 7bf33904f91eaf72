"""While training: why a running job is stuck, seen from outside."""

from antifreeze.doctor.job._diagnose import diagnose
from antifreeze.doctor.job._diagnosis import Confidence, Diagnosis, Suspect, Verdict

__all__ = ["Confidence", "Diagnosis", "Suspect", "Verdict", "diagnose"]
