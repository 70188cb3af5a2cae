"""Merges the inputs that a run has found into the corpus: `python -m tests.nightly.fuzzing.keep TARGET DIRECTORY...`.

It keeps only inputs that cover code which no smaller input covers. A corpus above MAX_BYTES loses its largest inputs.
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
"""The limit of each corpus."""


def keep(target: str, found: list[str]) -> None:
    """Replace a target's corpus by a merge of the corpus and the inputs in these directories."""
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
