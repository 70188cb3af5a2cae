"""Runs a target again with files that a fuzzer found: `python -m tests.nightly.fuzzing TARGET FILE...`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.nightly.fuzzing.targets import load

target = load(sys.argv[1])
try:
    for name in sys.argv[2:]:
        seconds = target.timed(Path(name).read_bytes())
        sys.stdout.write(f"{name}: {seconds * 1000:.1f} ms\n")
finally:
    target.close()
