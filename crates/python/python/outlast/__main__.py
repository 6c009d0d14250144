"""`python -m outlast`: the command."""

import sys

from outlast._cli import main

sys.exit(main())
