"""A problem of a configuration with its location: the line that `rmqd check` prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

KeyPath = tuple[str | int, ...]
"""The path to a value: keys of mappings and indexes of lists."""


@dataclass(frozen=True, slots=True)
class ConfigFinding:
    """A problem that a rule found at a path. `config.load` adds the file and the line."""

    path: KeyPath
    message: str
    missing: bool = False
    """Whether the key is missing. The problem is then reported at the location of its parent."""
    instead: KeyPath | None = None
    """Another key that can replace the missing key."""
    at_key: bool = False
    """Whether the key itself is wrong, not its value."""
    may_be_inherited: bool = False
    """Whether the key may come from `defaults`, because it has an effect in other groups."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """A problem at one location. Its text is `FILE:LINE:COLUMN: groups.mailer.handler: MESSAGE`."""

    place: str
    """`FILE:LINE:COLUMN`, or `--set KEY` for the command line."""
    path: KeyPath
    message: str
    """The problem and the expected form, on one line."""

    def __str__(self) -> str:
        path = path_text(self.path)
        return one_line(f"{self.place}: {path}: {self.message}" if path else f"{self.place}: {self.message}")


@dataclass(slots=True, eq=False)
class Locations:
    """The locations of a configuration's keys and values.

    Two Locations always compare as equal, so that two configurations with the same values are equal.
    """

    root: str
    """The location of the whole configuration."""
    keys: dict[KeyPath, str] = field(default_factory=dict)
    values: dict[KeyPath, str] = field(default_factory=dict)
    inherited: set[KeyPath] = field(default_factory=set)
    """Paths of keys that groups inherit from `defaults`. All paths below an inherited key are inherited too."""

    def of(self, path: KeyPath) -> str:
        """Return the location of a value; if it is not written anywhere, the location of the nearest enclosing key."""
        return self.values.get(path) or self.of_key(path)

    def of_key(self, path: KeyPath) -> str:
        """Return the location of a key; if it is not written anywhere, the location of the nearest enclosing key."""
        while path and path not in self.keys:
            path = path[:-1]
        return self.keys.get(path, self.root)

    def declared_path(self, path: KeyPath) -> KeyPath:
        """Return the path in `defaults` if a group inherits the value at a path; otherwise the path itself."""
        is_inherited = any(path[:length] in self.inherited for length in range(3, len(path) + 1))
        return ("defaults", *path[2:]) if is_inherited else path

    def problem(self, path: KeyPath, message: str, *, at_key: bool = False) -> ConfigProblem:
        """Return a problem of the value at a path, or of the key (`at_key`). The text names an inheriting group."""
        declared = self.declared_path(path)
        group = "" if declared == path else f" (inherited by groups.{path[1]})"
        return ConfigProblem((self.of_key if at_key else self.of)(path), declared, f"{message}{group}")

    def of_missing(self, path: KeyPath) -> str:
        """Return the location of a missing key's parent; if a group inherits the parent, the group's location."""
        parent = path[:-1]
        return self.of_key(parent if self.declared_path(parent) == parent else path[:2])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Locations)

    __hash__ = None  # type: ignore[assignment]


def path_text(path: KeyPath) -> str:
    """Return a path in the users' notation: `groups.mailer.allocate_queues[0].topic`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def one_line(text: str) -> str:
    """Return the text without line breaks and other characters that would move a terminal's cursor."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(char if char.isprintable() else " " for char in line)


def most_similar_name(wrong: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a wrong name, such as `max_size` for `maxSize`, or None."""
    import difflib  # imported here, so that only an invalid configuration has this cost

    plain = {name.replace("_", "").lower(): name for name in known}
    found = difflib.get_close_matches(wrong.replace("_", "").replace("-", "").lower(), plain, n=1, cutoff=0.7)
    return plain[found[0]] if found else None


def unknown(kind: str, wrong: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name, with the most similar known name, or with all known names."""
    names = list(known)
    guess = most_similar_name(wrong, names)
    accepted = ", ".join(names) if names else "none"
    return f"unknown {kind}; did you mean {guess}?" if guess else f"unknown {kind}; expected {accepted}"
