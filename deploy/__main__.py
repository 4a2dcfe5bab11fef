"""`python -m deploy` is the `baton` command."""

import sys

from deploy.cli import main

sys.exit(main())
