"""The record of compacted batches: the last batch of each query with rows in a compacted file.

It is read after a checkpoint was reset, and written by compactions, possibly several at once. So an entry never
changes: each is an empty file whose name contains everything, and the highest entry of a query counts. A lower entry is
deleted when both are a day old, so that a concurrent listing of the folder cannot miss both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rmqd.errors import RmqdError

_NAME: Final = re.compile(r"(?P<query>[0-9a-f-]{36})-(?P<batch>[0-9]{9,})")
_KEPT_MS: Final = 24 * 3600 * 1000


class CompactedBatches:
    """The record, in a folder without other files. For use on a driver."""

    def __init__(self, staging: Any, path: str) -> None:
        """`staging` is a `HadoopFolder`; `path` is the record's folder below it."""
        self._staging = staging
        self._path = path

    def add(self, batches: Mapping[str, int]) -> None:
        """Record the last batches of queries. If this raises RmqdError, do not take any of their files."""
        for query, batch in batches.items():
            if self.last_batch(query) >= batch:
                continue
            path = f"{self._path}/{_name(query, batch)}"
            # an existing file says the same; replacing it would hide it for a moment on some stores
            if not self._staging.put_new(path, b"") and self.last_batch(query) < batch:
                raise RmqdError(
                    f"{self._staging.url}/{path}, which records compacted batches, could not be written, and nothing "
                    "was moved; repeat the command when the folder is writable"
                )

    def take_over(self, path: str) -> None:
        """Import the single file of an older rmqd, and delete it. Raises RmqdError if its content is invalid."""
        try:
            content = self._staging.read(path)
        except RmqdError:
            if self._staging.exists(path):  # otherwise another process has just imported it
                raise
            return
        try:
            batches = {str(query): int(batch) for query, batch in json.loads(content).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise RmqdError(
                f"{self._staging.url}/{path} does not contain the compacted batches ({error!r}); restore the file, or "
                "delete it if no checkpoint will be reset"
            ) from error
        self.add(batches)
        self._staging.delete(path)

    def last_batch(self, query: str) -> int:
        """Return the last batch of a query with rows in a compacted file; -1 if there is none."""
        return max((batch for of, batch in self._noted(self._staging.names(self._path)) if of == query), default=-1)

    def forget_former(self, now_ms: int) -> None:
        """Delete outdated entries: of a query's day-old entries all but the highest."""
        before_ms = now_ms - _KEPT_MS
        facts = self._staging.facts(self._path)
        names = [path.rpartition("/")[2] for path, one in facts.items() if one.modified_ms < before_ms]
        last = dict(sorted(self._noted(names)))  # the highest entry of a query is last
        for query, batch in self._noted(names):
            if batch < last[query]:
                self._staging.delete(f"{self._path}/{_name(query, batch)}")

    @staticmethod
    def _noted(names: list[str]) -> Iterator[tuple[str, int]]:
        for name in names:
            if match := _NAME.fullmatch(name):
                yield match["query"], int(match["batch"])


def _name(query: str, batch: int) -> str:
    return f"{query}-{batch:09}"
