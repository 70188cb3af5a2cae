"""A server that responds as release 0.1.0 of RocketMQ's schema registry documents: one subject's schemas, by HTTP."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

_PATH = re.compile(r"/schema-registry/v1/subject/(?P<subject>[^/]+)(?:/recordId/(?P<id>-?[0-9]+))?/schema")
_VERSION_BITS = 14
_SCHEMA_IDS = itertools.count(0x431BDE82D78000, 1 << _VERSION_BITS)  # unique: a process keeps the schemas of ids
UNKNOWN = 50001
"""The registry's status for a missing schema. HTTP does not have this status."""


class Registry:
    """The schemas that the server has, and the requests that it received."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.schema_id = next(_SCHEMA_IDS)
        self.versions: list[Any] = []
        self.asked: list[str] = []
        self.failing: Sequence[int] = ()
        """The statuses of the next responses."""
        self.missing_bytes = 0
        """How many bytes at the end of each response are lost."""
        self.url = ""

    def record_id(self, version: int) -> int:
        """Return the record id of a version, counted from 1. The upper bits are the schema's id."""
        return self.schema_id | version

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """Return status and document. The registry checks only the version of an id."""
        self.asked.append(path)
        if self.failing:
            status, *self.failing = self.failing
            return status, {"status": status, "message": "its storage is away"}
        found = _PATH.fullmatch(path)
        if found is None:
            return 404, {"error": "Not Found"}
        version = int(found["id"]) & ((1 << _VERSION_BITS) - 1) if found["id"] else len(self.versions)
        if found["subject"] != self.subject or not 0 < version <= len(self.versions):
            return UNKNOWN, {"status": UNKNOWN, "message": f"Schema: {found['subject']} not exist"}
        return 200, {
            "subjectFullName": f"default/default/{self.subject}",
            "schemaFullName": "default/Order",
            "version": version,
            "recordId": self.record_id(version),
            "idl": json.dumps(self.versions[version - 1]),
            "dependency": None,
            "type": "AVRO",
        }


@contextmanager
def running(registry: Registry, port: int = 0) -> Iterator[Registry]:
    """Run the registry until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = registry.answer(self.path)
            content = json.dumps(document).encode()
            size_bytes = len(content) + registry.missing_bytes
            self.wfile.write(f"HTTP/1.1 {status} \r\nContent-Length: {size_bytes}\r\n\r\n".encode() + content)

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
