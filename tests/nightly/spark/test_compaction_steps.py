"""How a compaction's plan ends if a process sleeps or is killed at any step; without a JVM.

A file has the numbers of its rows, and three small files should become one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqd.errors import RmqdError
from rmqd.handler_api.destinations.archive_manifest import FORMAT, CompactionPlan, encode
from rmqd.spark.pipelines.compaction import COMPACTIONS_FOLDER, CompactedBatches, Compactions
from tests.spark.local_folder import LocalFolder

ALL = list(range(9))
FILES = 3
MAX_STEPS = 40
LATER = 2**60
QUERY = "3f2f6c3c-93f1-4b0a-8a51-0a6a3f4f6a51"
OTHER_QUERY = "4f2f6c3c-93f1-4b0a-8a51-0a6a3f4f6a51"
SOURCES = tuple(f"date=1/{number}" for number in range(FILES))
ENTRIES = tuple(f"_manifest/{number}.json" for number in range(FILES))


class KilledError(BaseException):
    """Simulates SIGKILL: nothing catches it."""


class Steps(LocalFolder):
    """Calls a function before and after each change of a file."""

    def __init__(self, base: Path, on_step: Callable[[], None]) -> None:
        super().__init__(base)
        self._on_step = on_step

    def put(self, path: str, content: bytes) -> None:
        self._on_step()
        super().put(path, content)
        self._on_step()

    def delete(self, path: str) -> None:
        self._on_step()
        super().delete(path)
        self._on_step()

    def move(self, path: str, target: Any, target_path: str) -> None:
        self._on_step()
        super().move(path, target, target_path)
        self._on_step()


def nothing() -> None:
    """The callback of a process that is neither killed nor asleep."""


def at(step: int, what: Callable[[], None]) -> Callable[[], None]:
    """Return a callback that calls `what` at one of many steps."""
    left = [step]

    def on_step() -> None:
        left[0] -= 1
        if left[0] == -1:
            what()

    return on_step


def die() -> None:
    raise KilledError


def plan_of(name: str, *, has_entries: bool = False) -> CompactionPlan:
    """A plan that compacts all files."""
    return CompactionPlan(
        version=FORMAT,
        sources=(*(ENTRIES if has_entries else ()), *SOURCES),
        written="written/part",
        target=f"date=1/compacted-{name}",
        rows=len(ALL),
        entry=f"_manifest/compacted-{name}.json" if has_entries else "",
    )


def planned(base: Path, plans: int, *, has_entries: bool = False) -> Path:
    """An archive of three files, and several plans that would each make one of them."""
    archive = LocalFolder(base / "archive")
    for number, sources in enumerate(zip(SOURCES, ENTRIES, strict=True)):
        for source in sources[: 2 if has_entries else 1]:
            archive.put(source, json.dumps(ALL[number * FILES : (number + 1) * FILES]).encode())
    for number in range(plans):
        plan = plan_of(f"{number}", has_entries=has_entries)
        ours = LocalFolder(base / "staging" / COMPACTIONS_FOLDER / f"{number}")
        ours.put("written/part", json.dumps(ALL).encode())
        ours.put("plan.json", encode(plan))
        if has_entries:
            ours.put("entry", json.dumps(ALL).encode())
            archive.put(f"{plan.entry}.compacting", json.dumps(ALL).encode())
    return base


def settle(base: Path, on_step: Callable[[], None] = nothing) -> None:
    """Carry out all plans."""
    compactions(base, on_step).finish_all()


def compactions(base: Path, on_step: Callable[[], None] = nothing) -> Compactions:
    return Compactions(Steps(base / "archive", on_step), Steps(base / "staging", on_step))


def read(base: Path) -> list[int]:
    """Return the rows that a reader finds. Entries list no row twice, and their group always finds all rows."""
    entries = [path for path in (base / "archive" / "_manifest").rglob("*") if path.is_file()]
    if entries:
        shown = numbers_in([path for path in entries if path.suffix == ".json"])
        assert len(set(shown)) == len(shown), shown
        assert set(numbers_in(entries)) == set(ALL)
    return numbers_in([path for path in (base / "archive").glob("date=1/*") if path.is_file()])


def numbers_in(files: list[Path]) -> list[int]:
    return sorted(number for path in files for number in json.loads(path.read_text()))


def copied(template: Path, to: Path) -> Path:
    shutil.copytree(template, to, copy_function=os.link)  # files are moved and replaced, never written into
    return to


def assert_settled(base: Path, told: object) -> None:
    """Check that all rows exist once, in one file, and that no work is left."""
    settle(base)
    compactions(base).delete_unplanned_files(LATER)
    assert read(base) == ALL, told
    for folder in (base / "archive").iterdir():
        assert [one.name.partition("-")[0] for one in folder.iterdir()] == ["compacted"], told
    assert not list(base.rglob("*.compacting")), told
    assert not list((base / "staging" / COMPACTIONS_FOLDER).iterdir()), told


@pytest.mark.parametrize("has_entries", [False, True])
def test_a_compaction_killed_at_any_step_is_finished_by_the_next_one(tmp_path: Path, has_entries: bool) -> None:
    """No row is ever duplicated. Rows are missing only while files are renamed."""
    template = planned(tmp_path / "template", 1, has_entries=has_entries)
    missing, lives, step = 0, False, 0
    while not lives:
        base = copied(template, tmp_path / f"{step}")
        try:
            settle(base, at(step, die))
            lives = True
        except KilledError:
            seen = read(base)
            assert len(set(seen)) == len(seen), step
            missing += seen != ALL
        assert_settled(base, step)
        step += 1
    assert step > 4 * FILES
    assert 0 < missing <= (4 if has_entries else 2) * FILES


@pytest.mark.parametrize("has_entries", [False, True])
def test_concurrent_compactions_of_one_plan_or_of_the_same_files_are_harmless(
    tmp_path: Path, has_entries: bool
) -> None:
    """One process sleeps at any step, while another one does everything or is killed at any step."""
    for plans in (1, 2):
        template, has_slept, step = planned(tmp_path / f"template{plans}", plans, has_entries=has_entries), True, 0
        while has_slept:
            for death in range(step % 3, MAX_STEPS, 3):
                has_slept = asleep(copied(template, tmp_path / "now"), step, death)
                shutil.rmtree(tmp_path / "now")
            step += 1
        assert step > 4 * FILES


def asleep(base: Path, step: int, death: int) -> bool:
    """Let a process sleep at a step while another one is killed. Return whether the first one got that far."""
    slept: list[int] = []

    def meanwhile() -> None:
        slept.append(step)
        try:
            settle(base, at(death, die))
            assert read(base) == ALL
        except KilledError:
            pass
        seen = read(base)
        assert len(set(seen)) == len(seen), (step, death)

    settle(base, at(step, meanwhile))
    seen = read(base)
    assert len(set(seen)) == len(seen), (step, death)
    assert_settled(base, (step, death))
    return bool(slept)


def test_a_compaction_without_its_source_files_is_abandoned(tmp_path: Path) -> None:
    """Its moved files are restored. Files without a plan are deleted, but the record of compacted batches is kept."""
    base = planned(tmp_path, 1)
    (base / "archive" / SOURCES[1]).unlink()
    note = LocalFolder(base / "staging" / COMPACTIONS_FOLDER)
    CompactedBatches(note, "batches").add({QUERY: 7})
    note.put("unplanned/written/part", b"[]")
    settle(base)
    assert read(base) == [0, 1, 2, 6, 7, 8]
    assert sorted(path.name for path in (base / "archive" / "date=1").iterdir()) == ["0", "2"]
    compactions(base).delete_unplanned_files(LATER)
    assert note.names() == ["batches"]
    assert (compactions(base).batches.last_batch(QUERY), compactions(base).batches.last_batch(OTHER_QUERY)) == (7, -1)


def test_a_file_that_cannot_be_moved_is_reported(tmp_path: Path) -> None:
    """It is not mistaken for a file that another process has taken."""
    base = planned(tmp_path, 1)

    class Refusing(LocalFolder):
        def move(self, path: str, target: Any, target_path: str) -> None:
            raise RmqdError("no space left")

    try:
        Compactions(Refusing(base / "archive"), LocalFolder(base / "staging")).finish_all()
    except RmqdError as error:
        assert str(error) == "no space left"  # noqa: PT017  pytest would be imported for this alone
    else:
        raise AssertionError("nothing was told")
    assert read(base) == ALL
    assert_settled(base, "afterwards")
