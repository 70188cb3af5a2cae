"""The marks file of dead letters: contents, damaged files and newer versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqd.errors import RmqdError
from rmqd.operate.dead_letters.dead_letter import DlqMarks, ReplayWindow

PLACE = ("broker-a", 0)


def test_marks_are_read_as_they_were_written(tmp_path: Path) -> None:
    marks = DlqMarks(tmp_path, "g")
    marks.lock()
    marks.load()
    assert marks.is_new
    for offset in (0, 1, 5):
        marks.settle(PLACE, offset, f"id-{offset}")
    marks.windows["broker-a"] = ReplayWindow(0, "send_back", {7: "key"}, {"SCHEDULE_TOPIC_XXXX": {0: 3}})
    marks.save()
    again = DlqMarks(tmp_path, "g")
    again.load()
    assert not again.is_new
    assert list(again.settled[PLACE]) == [(0, 2), (5, 6)]
    assert (again.witnesses, again.windows) == (marks.witnesses, marks.windows)
    other = DlqMarks(tmp_path, "another")
    other.load()
    assert not other.settled


@pytest.mark.parametrize("content", ["", "{", "[]", '{"queues": [{}], "windows": {}}', '{"queues": []}'])
def test_a_damaged_file_is_named_and_not_changed(tmp_path: Path, content: str) -> None:
    marks = DlqMarks(tmp_path, "g")
    marks.path.parent.mkdir(parents=True)
    marks.path.write_text(content)
    of_0_1_0 = marks.path
    for path in (of_0_1_0, of_0_1_0.with_name("elsewhere")):  # `load` reads 0.1.0's file until there is another
        marks.path = path
        with pytest.raises(RmqdError, match=rf"{of_0_1_0} is damaged"):
            marks.load()
    assert of_0_1_0.read_text() == content


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    marks = DlqMarks(tmp_path, "g")
    marks.lock()
    marks.save()
    marks.path.write_text(marks.path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(RmqdError, match=r"marks\.json was written by a newer rmqd \(format 2; this one reads 1\)"):
        DlqMarks(tmp_path, "g").load()


def test_a_folder_that_cannot_be_created_is_an_error_with_next_step(tmp_path: Path) -> None:
    (tmp_path / "dlq").write_text("no folder")
    with pytest.raises(RmqdError, match="--set state_dir=FOLDER"):
        DlqMarks(tmp_path, "g").lock()
