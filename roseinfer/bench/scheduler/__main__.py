"""python -m roseinfer.bench.scheduler: as python -m roseinfer.benchmark_scheduler."""

import sys

from roseinfer.benchmark_scheduler import main

if __name__ == "__main__":
    sys.exit(main())
