"""Plain English in the product and its pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plain_english import marked

TOP = Path(__file__).parent.parent
MAX_PER_1000_WORDS = 0.5


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["rmqd", "handlers", "docs"])
def test_sentences_are_plain(folder: str) -> None:
    """No mark is found more than once in 2,000 words."""
    found, words = marked([TOP / folder])
    too_many = [places for places in found.values() if len(places) * 1000 > words * MAX_PER_1000_WORDS]
    assert not too_many, "\n".join(place for places in too_many for place in places)


def test_marks_are_found(tmp_path: Path) -> None:
    """A sentence with a mark is found in a docstring and in a page, and a question is not."""
    (tmp_path / "module.py").write_text('"""What the broker is told of."""\n')
    (tmp_path / "page.md").write_text("Where there is none, start one. What is a queue?\n")
    found, words = marked([tmp_path])
    assert [places[0].split(" ")[1] for places in found.values() if places][:2] == ["What", "Where"]
    assert words == 16
