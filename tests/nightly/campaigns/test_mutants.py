"""The mutants campaign: the mutants of a source, the tests that judge them, and their counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.nightly.campaigns.mutant_fates import Fate, Fates
from tests.nightly.campaigns.mutant_rooms import ROOMS
from tests.nightly.campaigns.mutants import MutantsError, MutantsResult, harmless, verdict
from tests.nightly.campaigns.mutations import Mutant, mutants_of
from tests.nightly.campaigns.record import PAGE, add_row

PATH = "rmqd/consumer/cache/flow_control.py"


def made_of(tmp_path: Path, text: str) -> list[Mutant]:
    """Return the mutants of a module with this source."""
    (tmp_path / "room.py").write_text(text)
    return mutants_of("room.py", tmp_path)


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("return a < b", {"return None", "return (a <= b)", "return (not (a < b))"}),
        ("return a is None", {"return None", "return (a is not None)"}),
        ("return not a", {"return None", "return (a)"}),
        ("return True", {"return False"}),
        ("return a + 5", {"return None", "return (a - 5)", "return a + 6", "return a + 4"}),
        ("return a and b", {"return None", "return (a or b)"}),
        ("return min(a, b)", {"return None", "return max(a, b)"}),
        ("self.sent += a", {"pass", "self.sent -= a"}),
        ("self.sent = a", {"pass"}),
        ("await self.send(a)", {"pass"}),
        ("raise ValueError(a)", {"pass"}),
        ("a = self.sent = b", {"a = b"}),
        ("a = b", set()),
        ("log.info('sent', count=a + 1)", set()),
        ("raise ValueError('not ' + a)", {"pass"}),
        ("return a if b else a.c", {"return None", "return (a if (not (b)) else a.c)"}),
    ],
)
def test_faults_of_a_line(tmp_path: Path, line: str, faults: set[str]) -> None:
    """Each kind of mutant that docs/proof/campaigns.md lists."""
    made = made_of(tmp_path, f"class Room:\n    async def enter(self, a, b):\n        {line}\n")
    assert {mutant.after for mutant in made} == faults
    assert {(mutant.where, mutant.before, *mutant.lines) for mutant in made} <= {("Room.enter", line, 3)}


def test_conditions_are_negated_and_logging_is_not_mutated(tmp_path: Path) -> None:
    made = made_of(
        tmp_path,
        "def f(a):\n    while a.left:\n        if a.odd:\n            log.info('odd')\n        break\n",
    )
    assert [mutant.after for mutant in made] == ["while (not (a.left)):", "continue"]


def test_equal_lines_have_different_keys(tmp_path: Path) -> None:
    """The list of harmless mutants can name one of them."""
    made = made_of(tmp_path, "def f(a):\n    a.go()\n    a.go()\n")
    assert [mutant.key for mutant in made] == ["room.py: f: a.go() -> pass", "room.py: f: a.go() -> pass (2)"]


def test_modules_and_tests_of_rooms_exist() -> None:
    """The campaign would silently skip a module that was moved."""
    for room in ROOMS.values():
        paths = room.paths()
        assert all(any(path.startswith(f"rmqd/consumer/{name.rstrip('*')}") for path in paths) for name in room.modules)
        consumer = Path(__file__).parents[2] / "consumer"
        assert all((consumer / name).is_dir() or (consumer / f"{name}.py").is_file() for name in room.tests)


def test_results_stay_valid_until_a_module_or_test_changes(tmp_path: Path) -> None:
    """An incomplete line does not count."""
    one, two, *_ = mutants_of(PATH)
    Fates(tmp_path, "cache").add(one, Fate("killed", "tests/test_x.py::test", 3))
    with (tmp_path / "cache.jsonl").open("a") as file:
        file.write('{"key": "rm')
    fates = Fates(tmp_path, "cache")
    assert (fates.holds(one), fates.holds(two)) == (True, False)
    fates.add(two, Fate("survived"))
    text = (tmp_path / "cache.jsonl").read_text()
    (tmp_path / "cache.jsonl").write_text(text.replace('"tests_stamp": "', '"tests_stamp": "0'))
    fates = Fates(tmp_path, "cache")
    assert (fates.holds(one), fates.holds(two)) == (True, False)


def test_harmless_mutants_do_not_count_for_the_score(tmp_path: Path) -> None:
    """Survivors and mutants that no test reaches lower the score."""
    mutants = mutants_of(PATH)[:5]
    fates = Fates(tmp_path, "cache")
    for mutant, status in zip(mutants, ("killed", "hung", "survived", "unreached", "survived"), strict=True):
        fates.add(mutant, Fate(status))
    result = verdict("cache", fates, mutants, {mutants[4].key: "why", f"{PATH}: gone: a -> b": "why"}, 1.0)
    assert (result.counted, result.harmless, result.percent) == (4, 1, 50.0)
    assert len(result.survivors) == 2
    assert result.stale == (f"{PATH}: gone: a -> b",)
    assert not result.passed


def test_harmless_mutants_have_reasons() -> None:
    assert all(why.strip() for why in harmless().values())


def test_a_duplicate_harmless_entry_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = '[[harmless]]\nwhere = "a.py: f"\ncode = "b"\nbecomes = ["c"]\nwhy = "d"\n'
    (tmp_path / "twice.toml").write_text(entry * 2)
    monkeypatch.setattr("tests.nightly.campaigns.mutants.HARMLESS", tmp_path / "twice.toml")
    with pytest.raises(MutantsError, match="twice"):
        harmless()


@pytest.mark.process  # runs git for the commit
def test_rows_fit_their_table(tmp_path: Path) -> None:
    page = tmp_path / "campaigns.md"
    page.write_text(PAGE.read_text())
    add_row("mutants", MutantsResult("slots", 1.0, Counter(killed=9, survived=1), 2, ("one",), ()).cells(), page)
    lines = page.read_text().splitlines()
    row = next(number for number, line in enumerate(lines) if "| slots | 12 | 9 | 0 | 2 | 1 | 90.0 % | 1 |" in line)
    heading = max(number for number, line in enumerate(lines[:row]) if line.startswith("| date"))
    assert lines[row].count("|") == lines[heading].count("|")
