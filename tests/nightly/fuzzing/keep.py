"""Merges the inputs that a run has found into the corpus: `python -m tests.nightly.fuzzing.keep TARGET DIRECTORY...`.

Only inputs that reach what no smaller one does are kept; a corpus above MAX_BYTES loses its largest.
"""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.nightly.fuzzing.target import replace_corpus, unpack

MAX_BYTES: Final = 150_000
"""Of each corpus."""


def keep(target: str, found: list[str]) -> None:
    """Renew the corpus of a target, of its own inputs and those of other directories."""
    with tempfile.TemporaryDirectory() as merged:
        figures = str(Path(merged) / "figures.json")
        inputs = Path(merged) / "inputs"
        inputs.mkdir()
        corpus = unpack(target, Path(merged) / "corpus")
        command = [sys.executable, "-m", "tests.nightly.fuzzing.guided", target, figures, "-merge=1"]
        subprocess.run([*command, str(inputs), str(corpus), *found], check=True)
        new = sorted((path.read_bytes() for path in inputs.iterdir()), key=len)
    sizes = itertools.accumulate(map(len, new))
    kept = [data for data, size in zip(new, sizes, strict=True) if size <= MAX_BYTES]
    replace_corpus(target, {hashlib.sha256(data).hexdigest()[:16]: data for data in kept})


if __name__ == "__main__":
    keep(sys.argv[1], sys.argv[2:])
