"""Several processes that carry out the same plans, step by step in random orders; without a JVM."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqd.errors import RmqdError
from rmqd.handler_api.destinations.archive_manifest import encode
from rmqd.spark.pipelines.compaction import COMPACTIONS_FOLDER, Compactions
from tests.nightly.spark.test_compaction_steps import ALL, LATER, SOURCES, compactions, plan_of, planned, read, settle
from tests.spark.local_folder import LocalFolder

SCHEDULES = 40
FOUND = (297, 373)  # in these, one process restores the files that the other one has just restored
MOVES_ON = 0.94  # the probability that the same actor makes the next step
LATE = f"{COMPACTIONS_FOLDER}/late"


class Actor:
    """Does its work in a thread that waits for `step` before each access to a folder."""

    def __init__(self, work: Callable[[Actor], None]) -> None:
        self.is_done = False
        self.error: Exception | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let the actor make one step."""
        self._go.release()
        self._back.acquire()

    def pause(self) -> None:
        """Called by the thread."""
        self._back.release()
        self._go.acquire()

    def _run(self, work: Callable[[Actor], None]) -> None:
        self._go.acquire()
        try:
            work(self)
        except (RmqdError, OSError) as error:
            self.error = error
        self.is_done = True
        self._back.release()


class Shared(LocalFolder):
    """A folder that others change between any two accesses."""

    def __init__(self, base: Path, actor: Actor) -> None:
        super().__init__(base)
        self._actor = actor

    def exists(self, path: str) -> bool:
        self._actor.pause()
        return super().exists(path)

    def read(self, path: str) -> bytes:
        self._actor.pause()
        try:
            return super().read(path)
        except FileNotFoundError as error:
            raise RmqdError(str(error)) from error

    def move(self, path: str, target: Any, target_path: str) -> None:
        self._actor.pause()
        try:
            target.make(str(Path(target_path).parent))
            os.replace(self._base / path, target._base / target_path)
        except FileNotFoundError as error:
            raise RmqdError(str(error)) from error

    def delete(self, path: str) -> None:
        self._actor.pause()
        shutil.rmtree(self._base / path, ignore_errors=True)
        if not (self._base / path).is_dir():
            (self._base / path).unlink(missing_ok=True)


def shared(base: Path, actor: Actor) -> Compactions:
    return Compactions(Shared(base / "archive", actor), Shared(base / "staging", actor))


def play(seed: int, base: Path, *works: Callable[[Actor], None]) -> None:
    """Let all actors work, in a random order. No row may ever be duplicated."""
    draw = random.Random(seed)
    actors = [Actor(work) for work in works]
    now = draw.choice(actors)
    while going := [actor for actor in actors if not actor.is_done]:
        if now.is_done or draw.random() > MOVES_ON:
            now = draw.choice(going)
        now.step()
        seen = read(base)
        assert len(set(seen)) == len(seen), seed
    assert not [actor.error for actor in actors if actor.error], seed
    settle(base)
    compactions(base).delete_unplanned_files(LATER)


@pytest.mark.parametrize(("gone", "has_entries"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("plans", [1, 2])
def test_concurrent_compactions_of_the_same_plans_lose_nothing(
    tmp_path: Path, plans: int, gone: bool, has_entries: bool
) -> None:
    """If a source file was deleted, its plan is abandoned, and nothing else is lost."""
    for seed in (*range(SCHEDULES), *FOUND):
        base = planned(tmp_path / f"{seed}", plans, has_entries=has_entries)
        if gone:
            (base / "archive" / SOURCES[-1]).unlink()
        play(seed, base, *[lambda actor, base=base: shared(base, actor).finish_all()] * 2)
        assert read(base) == (ALL[:6] if gone else ALL), seed


def test_a_command_that_starts_while_another_one_plans_loses_nothing(tmp_path: Path) -> None:
    """Written files without a plan belong to a process that is about to take the source files."""
    for seed in range(SCHEDULES):
        base = planned(tmp_path / f"{seed}", 0)
        staging = LocalFolder(base / "staging")
        staging.put(f"{LATE}/written/part", json.dumps(ALL).encode())
        now_ms = staging.file_facts(LATE)[f"{LATE}/written/part"].modified_ms
        content = encode(plan_of("late"))

        def begin(actor: Actor, base: Path = base, now_ms: int = now_ms) -> None:
            found = shared(base, actor)
            found.finish_all()
            found.delete_unplanned_files(now_ms)

        def finish(actor: Actor, base: Path = base, content: bytes = content) -> None:
            found = shared(base, actor)
            Shared(base / "staging", actor).put(f"{LATE}/plan.json", content)
            found.finish_all()

        play(seed, base, begin, finish)
        assert read(base) == ALL, seed
