"""The note of which batches are compacted: up to which one the rows of a query may be in a file with others'.

A checkpoint that is taken back asks for it, and compactions write it, several at once perhaps. So nothing in it is ever
changed: each addition is an empty file of its own, whose name says it all, and the highest one of a query counts. A
lower one is deleted when both have been there for a day, so that nobody who lists the folder misses both.
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
    """The note in a folder that has nothing else. On a driver."""

    def __init__(self, staging: Any, path: str) -> None:
        """`staging` as `HadoopFolder`, and the note's folder below it."""
        self._staging = staging
        self._path = path

    def add(self, batches: Mapping[str, int]) -> None:
        """Note the last batches of queries. Raises RmqdError where that fails: then no file of theirs may be taken."""
        for query, batch in batches.items():
            if self.last_batch(query) >= batch:
                continue
            path = f"{self._path}/{_name(query, batch)}"
            # one that is there by now says the same; to replace it would have it missing meanwhile on some stores
            if not self._staging.put_new(path, b"") and self.last_batch(query) < batch:
                raise RmqdError(
                    f"{self._staging.url}/{path}, which notes what is compacted, could not be written, and nothing was "
                    "moved; accepted: the command again, once the folder can be written to"
                )

    def take_over(self, path: str) -> None:
        """Add what an older rmqd has noted in one file, and delete that. Raises RmqdError where it tells no batches."""
        try:
            content = self._staging.read(path)
        except RmqdError:
            if self._staging.exists(path):  # else somebody else has just taken it over
                raise
            return
        try:
            batches = {str(query): int(batch) for query, batch in json.loads(content).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise RmqdError(
                f"{self._staging.url}/{path} does not tell which batches were compacted ({error!r}); accepted: the "
                "file as it was, or none if no checkpoint will be taken back"
            ) from error
        self.add(batches)
        self._staging.delete(path)

    def last_batch(self, query: str) -> int:
        """Up to which batch a query's rows may be in a file with others'; -1 where they are in none."""
        return max((batch for of, batch in self._noted(self._staging.names(self._path)) if of == query), default=-1)

    def forget_former(self, now_ms: int) -> None:
        """Delete what counts no more: of each query all but the highest of those that have been there for a day."""
        before_ms = now_ms - _KEPT_MS
        facts = self._staging.facts(self._path)
        names = [path.rpartition("/")[2] for path, one in facts.items() if one.modified_ms < before_ms]
        last = dict(sorted(self._noted(names)))  # the highest one of a query comes last
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
