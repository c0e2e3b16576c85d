"""`python -m harness`: the command `faultline`."""

import sys

from harness.cli.main import main

sys.exit(main())
