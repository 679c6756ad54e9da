"""python -m tools.requests: serve the lessons' 24 requests by every stage, and record it in data/requests.json.

Run it on a quiet machine: nothing is written where another stage than the engine is the fastest. It takes two minutes.
"""

from __future__ import annotations

import sys

from course.teach.served.serve_requests import recorded_requests, write_recorded


def main() -> int:
    try:
        write_recorded()
    except ValueError as error:
        print(f"FAILED nothing recorded: {error}", file=sys.stderr)
        return 1
    print(recorded_requests().alt)
    return 0


if __name__ == "__main__":
    sys.exit(main())
