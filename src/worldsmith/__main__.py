"""`python -m worldsmith` is the `worldsmith` command."""

import sys

from worldsmith.cli.main import main

sys.exit(main())
