"""`python -m tersify`."""

import sys

from tersify.cli import main

sys.exit(main())
