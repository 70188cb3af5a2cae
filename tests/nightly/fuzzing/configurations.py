"""Configurations as users write them, from the bytes of the files to the options of handlers and of the engine.

An input is `rmqd.yaml`. U+001E, which YAML does not allow, separates further parts. A part that begins with `set ` is
an option `--set`; any other part is a file of `groups/`.
"""

from __future__ import annotations

import importlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from random import Random
from typing import Any, Final
from zlib import crc32

from rmqd.config.load import config_schema
from rmqd.config.model.root_model import RootConfig
from rmqd.config.problems import ConfigProblem
from rmqd.config.reading.config_source import exposed_secrets
from rmqd.errors import ConfigError
from rmqd.plugins import entry_points as lookup
from rmqd.plugins import model_options as runnable
from rmqd.plugins.model_options import consumer_options
from tests.nightly.fuzzing.line_changes import changed_text
from tests.nightly.fuzzing.target import Change, Finding, Target, growing, replaced

BETWEEN_FILES: Final = b"\x1e"
ROOT: Final = "rmqd.yaml"
ENVIRON: Final = {"TOKEN": "secret", "EMPTY": "", "NUMBER": "7", "SIZE": "5MiB", "ODD": "\udcff", "YAML": "{a: [1"}
IMPORTABLE: Final = ("rmqd_handlers.log", "rmqd_handlers.exec", "rmqd_handlers.pipelines", "rmqd_handlers.option_kinds")
"""The modules that an input may import. Importing some others has side effects; one opens a browser."""
_IN_MEMORY: Final = Path("/dev/shm")
_PLACE: Final = re.compile(r"(rmqd\.yaml|groups/[0-9]+\.yaml):([0-9]+):([0-9]+): ")
_WORDS: Final = (
    "${TOKEN}", "${NUMBER}", "${EMPTY:-x}", "${NONE}", "${NONE:-5s}", "${file:token}", "${file:absent}", "${file:.}",
    "$${", "${", "${ODD}", "*", "**", "<<: *a", "&a", "*a", "!!int", "!!str", "!", "|", ">-", "---", "...", "%YAML 1.2",
    "{sql: a > 1}", "a || b", "[]", "{}", "[a, b]", "{a: b}", "true", "null", "~", "-1", "0x7f", "0o17", "1e400",
    ".inf", "1_000", "99999999999999999999", "5s", "1.5h", "0ms", "16MiB", "1GiB", "1.5KiB", "a:1", "a:1;b:2",
    "[::1]:9876", "127.0.0.1:0", "host:99999", "http://a:b@c/d", "2026-01-01T00:00:00Z", "@1700000000000",
    "mailer:handle",
    "rmqd_handlers.log:Log", "log", "jsonl", "exec", "archive", "per_minute", "select", "%RETRY%a", "%DLQ%a",
    '"\\0"', '"\\uD800"', "'", '"', ": ", "- ", "#", "\t", "\\x00",
    "set groups.mailer.pull_batch_size=1", "set log.level=debug",
)  # fmt: skip


class Configurations(Target):
    """Loading returns a configuration with valid options of the engine, or raises a ConfigError with places."""

    name = "configurations"
    most_bytes = 2048

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="rmqd-fuzzing-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None
        )
        self._path = Path(self._folder.name)
        (self._path / "groups").mkdir()
        (self._path / "token").write_text("secret\n")
        self._keys = sorted(_keys())

    def close(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()

    def words(self) -> Sequence[bytes]:
        """All keys, their allowed words, options of handlers, and forms of values."""
        return [word.encode() for word in (*self._keys, *_WORDS)]

    def run(self, data: bytes) -> None:
        """Load the input as `rmqd run` does, and create the daemon's options from it."""
        self.cases += 1
        root, *others = data.split(BETWEEN_FILES)
        files, overrides = {ROOT: root}, []
        for number, part in enumerate(others[:4]):
            if part.startswith(b"set "):
                overrides.append(part[4:].decode("utf-8", "surrogateescape"))  # as Python reads a command line
            else:
                files[f"groups/{number}.yaml"] = part
        only_known = (lookup, "_import", _import_known), (runnable, "forget_entry_points", _find_no_more)
        with self._written(files), replaced(*only_known):
            try:
                config = runnable.load_runnable(Path(ROOT), overrides, environ=ENVIRON)
            except ConfigError as error:
                _check(error, files)
            else:
                _use(config)
            if crc32(data) % 8 == 0:  # rarely, because exposed_secrets reads all files again
                for problem in exposed_secrets(Path(ROOT)):
                    str(problem).encode()

    def mutated(self, data: bytes, most_bytes: int, chance: Random, change: Change) -> bytes:
        """Change a line, a key or a value of one file, or any bytes."""
        change = growing(change, chance)
        if chance.random() < 0.15:
            return change(data, most_bytes)
        parts = data.split(BETWEEN_FILES)
        if (kind := chance.random()) < 0.02:
            parts.append(b"set groups.mailer.handler.concurrency=5")
        elif kind < 0.04:
            parts.append(b"subscriptions: {a: '*'}\nhandler: {plugin: log}\n")
        else:
            at = chance.randrange(len(parts))
            parts[at] = changed_text(parts[at], self._keys, _WORDS, chance, change)
        return BETWEEN_FILES.join(parts)[:most_bytes]

    @contextmanager
    def _written(self, files: dict[str, bytes]) -> Iterator[None]:
        """Write the files, and make their directory the working directory."""
        before = Path.cwd()
        for name, content in files.items():
            (self._path / name).write_bytes(content)
        os.chdir(self._path)
        try:
            yield
        finally:
            os.chdir(before)
            for name in files:
                (self._path / name).unlink()


def _check(error: ConfigError, files: dict[str, bytes]) -> None:
    """Check that each problem is one printable line and names an existing place."""
    if not error.problems:
        raise Finding("a ConfigError without a problem")
    lines = {name: len(content.decode("utf-8-sig", "replace").splitlines()) for name, content in files.items()}
    for problem in error.problems:
        line = str(problem)
        line.encode()
        if not isinstance(problem, ConfigProblem) or not line.isprintable():
            raise Finding(f"not a line: {line!r}")
        if line.startswith("--set "):
            continue
        place = _PLACE.match(line)
        if place is None or place[1] not in files:
            raise Finding(f"no place: {line}")
        if int(place[2]) > lines[place[1]] + 1:
            raise Finding(f"no such line: {line}")


def _use(config: RootConfig) -> None:
    """Use an accepted configuration: nothing may fail any more."""
    repr(config).encode()
    _check_texts(config.model_dump())
    for cluster in config.known_clusters.values():
        cluster.client_options()
    for name in config.groups:
        consumer_options(config, name)
        config.of_group(name)


def _check_texts(value: object) -> None:
    """Check that every text can be encoded and has no NUL character, except for handlers' options."""
    if isinstance(value, str):
        if "\0" in value.encode().decode():
            raise Finding(f"a NUL character in {value!r}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key != "options":
                _check_texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_texts(inner)


def _import_known(name: str) -> object:
    if name not in IMPORTABLE:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return importlib.import_module(name)


def _find_no_more() -> None:
    """Installed plugins are searched for only once."""


def _keys() -> set[str]:
    """Return the names and choices in the schemas of the configuration and of the installed handlers' options."""
    schemas: list[Any] = [config_schema()]
    for found in entry_points(group="rmqd.handlers"):
        options = getattr(found.load(), "Options", None)
        if options is not None:
            schemas.append(options.model_json_schema())
    names: set[str] = {"mailer", "orders", "topic", "broker_name", "queue_id"}
    while schemas:
        schema = schemas.pop()
        if isinstance(schema, dict):
            names.update(schema.get("properties", {}))
            names.update(word for word in schema.get("enum", ()) if isinstance(word, str))
            schemas.extend(schema.values())
        elif isinstance(schema, list):
            schemas.extend(schema)
    return names
