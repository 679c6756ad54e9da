"""python -m roseinfer: the command `roseinfer` of this interpreter."""

import sys

from roseinfer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
