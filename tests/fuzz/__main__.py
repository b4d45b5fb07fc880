"""``python -m tests.fuzz``: see runner.py."""

from __future__ import annotations

import sys

from tests.fuzz.runner import main

if __name__ == "__main__":
    sys.exit(main())
