"""One thing that is wrong with a configuration, and where: the line that `rmqd check` prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Path = tuple[str | int, ...]
"""The way to a value: keys of mappings and indexes of lists."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at a path."""

    path: Path
    message: str
    missing: bool = False
    """Whether a key is missing: then the problem is shown at its parent."""
    instead: Path | None = None
    """Another key that may be given instead of the missing one."""
    at_key: bool = False
    """Whether the key itself is wrong, not its value."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """What is wrong at one place; its text is `FILE:LINE:COLUMN: groups.mailer.handler: what is wrong`."""

    place: str
    """`FILE:LINE:COLUMN`, or `--set KEY` for what the command line says."""
    path: Path
    message: str
    """What is wrong, and what is accepted; one line."""

    def __str__(self) -> str:
        path = path_text(self.path)
        return one_line(f"{self.place}: {path}: {self.message}" if path else f"{self.place}: {self.message}")


@dataclass(slots=True, eq=False)
class Places:
    """The places of the keys and values of a configuration.

    Two Places always compare as equal, so that two configurations are equal if their values are, wherever these stand.
    """

    root: str
    """The place of the configuration as a whole."""
    keys: dict[Path, str] = field(default_factory=dict)
    values: dict[Path, str] = field(default_factory=dict)

    def of(self, path: Path) -> str:
        """The place of a value; if it is not written anywhere, that of the nearest key around it."""
        return self.values.get(path) or self.of_key(path)

    def of_key(self, path: Path) -> str:
        """The place of a key; if it is not written anywhere, that of the nearest key around it."""
        return self.keys.get(self.written(path), self.root)

    def written(self, path: Path) -> Path:
        """The longest beginning of a path that is written in a file or on the command line."""
        while path and path not in self.keys:
            path = path[:-1]
        return path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places)

    __hash__ = None  # type: ignore[assignment]


def path_text(path: Path) -> str:
    """A path as users write it: `groups.mailer.allocate_queues[0].topic`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def one_line(text: str) -> str:
    """The text without line breaks and other characters that would move a terminal's cursor."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(char if char.isprintable() else " " for char in line)


def nearest(wrong: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to a wrong one, if one is similar enough, as `max_size` is to `maxSize`."""
    import difflib  # imported here, so that only a faulty configuration pays for it

    plain = {name.replace("_", "").lower(): name for name in known}
    found = difflib.get_close_matches(wrong.replace("_", "").replace("-", "").lower(), plain, n=1, cutoff=0.7)
    return plain[found[0]] if found else None


def unknown(kind: str, wrong: str, known: Iterable[str]) -> str:
    """The message for an unknown name: with the known name that was probably meant, or else with all known names."""
    names = list(known)
    guess = nearest(wrong, names)
    accepted = ", ".join(names) if names else "none"
    return f"unknown {kind}; did you mean {guess}?" if guess else f"unknown {kind}; accepted: {accepted}"
