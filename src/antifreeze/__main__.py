"""``python -m antifreeze`` is the command ``antifreeze``."""

import sys

from antifreeze.doctor.command import main

sys.exit(main())
