"""Runs a command of ours in a process whose files may not grow beyond a limit: what a
full disk does to a writer.

full_disk.py BYTES COMMAND…
"""

import resource
import sys

from tersify.cli import main

if __name__ == "__main__":
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sys.exit(main(sys.argv[2:]))
