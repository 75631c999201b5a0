"""Prints what extras of the installed package need, a requirement a line: pip then need
not build the package again.

usage: python tools/extras.py EXTRA...
"""

import re
import sys
from importlib.metadata import requires

CLAUSE = re.compile(r"""(?:;\s*|\s+and\s+)extra\s*==\s*['"]([\w-]+)['"]""")


def main() -> int:
    wanted = set(sys.argv[1:])
    for requirement in requires("tersify") or ():
        found = CLAUSE.search(requirement)
        if found and found[1] in wanted:
            print(CLAUSE.sub("", requirement))
    return 0


if __name__ == "__main__":
    sys.exit(main())
