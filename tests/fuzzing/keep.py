"""Merges the inputs that a run has found into the corpus: `python -m tests.fuzzing.keep TARGET DIRECTORY...`.

Only inputs that reach what no smaller one does are kept; a corpus above MOST_BYTES loses its largest.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.fuzzing.target import CORPUS

MOST_BYTES: Final = 150_000
"""Of each corpus."""


def keep(target: str, found: list[str]) -> None:
    """Renew the corpus of a target, of its own inputs and those of other directories."""
    corpus = CORPUS / target
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as merged:
        figures = str(Path(merged) / "figures.json")
        inputs = Path(merged) / "inputs"
        inputs.mkdir()
        command = [sys.executable, "-m", "tests.fuzzing.guided", target, figures, "-merge=1"]
        subprocess.run([*command, str(inputs), str(corpus), *found], check=True)
        new = sorted((path.read_bytes() for path in inputs.iterdir()), key=len)
    for path in corpus.iterdir():
        path.unlink()
    size = 0
    for data in new:
        size += len(data)
        if size <= MOST_BYTES:
            (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


if __name__ == "__main__":
    keep(sys.argv[1], sys.argv[2:])
