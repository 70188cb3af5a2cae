"""Puts files through a target, without a fuzzer: `python -m tests.fuzzing TARGET FILE...`, for what one has found."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fuzzing.targets import load

target = load(sys.argv[1])
try:
    for name in sys.argv[2:]:
        seconds = target.timed(Path(name).read_bytes())
        sys.stdout.write(f"{name}: {seconds * 1000:.1f} ms\n")
finally:
    target.close()
