"""The command ``antifreeze``."""

from __future__ import annotations

import sys

from antifreeze import __version__
from antifreeze.doctor.check import command as check

USAGE = """\
usage: antifreeze doctor check [--json] [--all] [script.py ...]

  doctor check    say what on this machine, and in these scripts, will freeze a data loader; nothing is run

antifreeze --version prints the version.
Exit codes: 0 nothing found, 1 something found, 2 something could not be checked."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:2] == ["doctor", "check"]:
        return check.main(given[2:])
    if given == ["--version"]:
        print(f"antifreeze {__version__}")
        return 0
    asked = given in (["--help"], ["-h"], ["doctor", "--help"], ["doctor", "-h"])
    print(USAGE, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())
