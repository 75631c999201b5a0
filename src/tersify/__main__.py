"""`python -m tersify`."""

import os
import sys

from tersify.cli import main

status = main()
if "TORCHELASTIC_RUN_ID" in os.environ:
    # Gloo's threads may outlive their group, and a process that ends with one alive
    # aborts: torchrun would call a finished run failed. The files are written and
    # closed, so leave at once.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
sys.exit(status)
