"""`python -m harness`: the command `faultline`."""

import sys

from harness.cli import main

sys.exit(main())
