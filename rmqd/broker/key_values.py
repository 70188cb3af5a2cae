"""Settings that administrators store on the name server, by namespace and key (`KVConfigManager.java`)."""

from __future__ import annotations

import json
from typing import Final

from rmqd.broker.journal import Journal, Kind
from rmqd.broker.reply import Refusal
from rmqd.codes import ResponseCode

MAX_CHARACTERS: Final = 64 * 1024
MAX_ENTRIES: Final = 1000


class KVConfigManager:
    """Texts by namespace and key."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._tables: dict[str, dict[str, str]] = {}
        for row, value in journal.items(Kind.KEY_VALUE):
            namespace, key = json.loads(row)
            self._tables.setdefault(namespace, {})[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key, or None."""
        return self._tables.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a value. Raises Refusal if it is too long, or if the limit of keys is reached."""
        known = self.get(namespace, key)
        if len(namespace) + len(key) + len(value) > MAX_CHARACTERS:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"a key and its value have at most {MAX_CHARACTERS} characters")
        if known is None and sum(map(len, self._tables.values())) >= MAX_ENTRIES:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"at most {MAX_ENTRIES} keys are kept")
        self._tables.setdefault(namespace, {})[key] = value
        self._journal.put(Kind.KEY_VALUE, json.dumps([namespace, key]), value)

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value. As on the real name server, the namespace stays."""
        if self._tables.get(namespace, {}).pop(key, None) is not None:
            self._journal.delete(Kind.KEY_VALUE, json.dumps([namespace, key]))

    def table(self, namespace: str) -> dict[str, str] | None:
        """Return all values of a namespace; None if it never had one."""
        table = self._tables.get(namespace)
        return None if table is None else dict(table)
