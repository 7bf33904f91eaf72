"""The command ``antifreeze``."""

from __future__ import annotations

import sys

from antifreeze import __version__
from antifreeze.doctor.check import command as check
from antifreeze.doctor.job import command as job

USAGE = """\
usage: antifreeze doctor [PID | NAME] [--json] [--native] [--keep FOLDER]
       antifreeze doctor run [--stall SECONDS] [--keep FOLDER] -- python train.py ...
       antifreeze doctor report FOLDER [--json]
       antifreeze doctor check [--json] [--all] [script.py ...]

  doctor          say why a running training job stands still; without a name, the one that has torch loaded
  doctor run      start a job, watch it, and say why whenever it stands still; it is left alone
  doctor report   the same from what was kept, later and elsewhere
  doctor check    before training: say what on this machine, and in these scripts, will freeze a data loader

antifreeze --version prints the version; each command has --help.
Exit codes: 0 healthy or nothing found, 1 stuck or something found, 2 it could not be looked at, 3 slow;
of `doctor run`: those of the job."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given == ["--version"]:
        print(f"antifreeze {__version__}")
        return 0
    if given[:1] != ["doctor"] or given[1:] in (["--help"], ["-h"]):
        asked = given[-1:] in (["--help"], ["-h"])
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    commands = {"check": check.main, "report": job.report, "run": job.run_job}
    command = commands.get(given[1]) if len(given) > 1 else None
    return command(given[2:]) if command else job.look_at(given[1:])


if __name__ == "__main__":
    sys.exit(main())
