"""`python -m worldloom` is the `worldloom` command."""

import sys

from worldloom.cli.main import main

sys.exit(main())
