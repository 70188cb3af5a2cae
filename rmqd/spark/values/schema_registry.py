"""A client of RocketMQ's schema registry, for the REST API of its release 0.1.0.

The registry stores schemas by subject, which is usually a topic's name. A record id identifies one version of a
subject's schema. For an unknown record id, the registry returns the same error as for a failure of its storage, with a
status of five digits. So a record id counts as unknown only if the registry then returns the subject's latest schema,
and rejects the id again. An error of a proxy, or about access, does not make a record id unknown.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

from rmqd.errors import RmqdError
from rmqd.spark.session.queue_queries import retry_until_timeout

API_PATH: Final = "/schema-registry/v1"
TIMEOUT_SECONDS: Final = 10.0
EXPECTED_URL: Final = "expected http://HOST:PORT of RocketMQ's schema registry"
_KEPT_SCHEMAS: Final = 1024
_OF_THE_MOMENT: Final = (401, 403, 408, 429, *range(500, 600))  # HTTP statuses that do not concern the requested schema
_LONG_STATUS: Final = re.compile(r"HTTP/1\.[01] ([0-9]{4,})")


class RegistryUnavailableError(RmqdError):
    """The registry does not answer, or cannot return a schema. The body may be valid, so the task fails."""


class UnknownRecordIdError(ValueError):
    """The registry has no Avro schema for a body's record id, so the body is unreadable."""


class _RefusedError(Exception):
    """The registry rejected a request. The reason may be an unknown id, or a failure of its storage."""


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """One subject of a schema registry. Picklable; each process queries the registry, and caches writers' schemas."""

    url: str
    subject: str = ""
    patience_seconds: float = 0.0
    """How many seconds an executor waits for an unavailable registry."""

    @property
    def display_name(self) -> str:
        return f"the subject {self.subject} of {self.url}"

    def latest_schema(self) -> str:
        """Return the subject's latest schema as JSON text. Raises RegistryUnavailableError if there is no answer."""
        try:
            return _idl(self._asked(f"/subject/{quote(self.subject, safe='')}/schema"))
        except _RefusedError as error:
            raise RegistryUnavailableError(
                f"{self.url} has no schema of the subject {self.subject}: it returned {error}; set valueSubject to a "
                "registered subject"
            ) from None

    @functools.lru_cache(_KEPT_SCHEMAS)  # noqa: B019  a process uses few registries, and keeps them until its end
    def writer_schema(self, record_id: int) -> Any:
        """Return the schema that a body was written with, by the body's record id. fastavro has parsed the schema.

        The schema is cached for the life of the process, because the schema of a record id never changes. Raises
        UnknownRecordIdError, and RegistryUnavailableError if the registry is unavailable for `patience_seconds`.
        """
        return retry_until_timeout(lambda: self.query_writer_schema(record_id), self.patience_seconds)

    def query_writer_schema(self, record_id: int) -> Any:
        """Query the schema that `writer_schema` returns, without a cache and without retries."""
        import fastavro

        path = f"/subject/{quote(self.subject, safe='')}/recordId/{record_id}/schema"
        try:
            answer = self._asked(path)
        except _RefusedError:
            self.latest_schema()  # the registry works; the error may have been temporary
            try:
                answer = self._asked(path)
            except _RefusedError as error:
                raise UnknownRecordIdError(
                    f"{self.display_name} has no record {record_id}: it returned {error}"
                ) from None
        if answer.get("recordId") != record_id:
            raise UnknownRecordIdError(
                f"{self.display_name} has the record {answer.get('recordId')} as version {answer.get('version')}, "
                f"but the body was written with the record {record_id}: does it belong to another subject?"
            )
        try:
            return fastavro.parse_schema(json.loads(_idl(answer)))
        except Exception as error:  # noqa: BLE001  fastavro raises many kinds
            raise UnknownRecordIdError(
                f"{self.display_name} has no Avro schema as record {record_id}: {error!r}"
            ) from None

    def _asked(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}{API_PATH}{path}", headers={"Accept": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                document = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            content = b""
            with error, contextlib.suppress(OSError, http.client.HTTPException):  # the response may be cut off
                content = error.read()
            first_line = content.decode(errors="replace").strip().partition("\n")[0][:200]
            told = f"{error.code} {first_line}".strip()
            if error.code in _OF_THE_MOMENT:
                raise RegistryUnavailableError(f"{self.url} returns no schemas: it returned {told}") from None
            raise _RefusedError(told) from None
        except http.client.BadStatusLine as error:
            if found := _LONG_STATUS.match(str(error)):
                raise _RefusedError(found[1]) from None
            raise RegistryUnavailableError(f"{self.url} does not speak HTTP: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise RegistryUnavailableError(f"{self.url} does not answer: {reason or type(error).__name__}") from error
        except ValueError as error:
            raise RegistryUnavailableError(
                f"{self.url}{API_PATH} does not return JSON: {error}; {EXPECTED_URL}"
            ) from None
        if not isinstance(document, dict):
            raise RegistryUnavailableError(f"{self.url}{API_PATH} does not return a schema; {EXPECTED_URL}")
        return document


def parse_registry_url(text: str) -> str:
    """Return the registry's URL in an option, without API_PATH. Raises ValueError with the expected form."""
    url = text.strip().rstrip("/").removesuffix(API_PATH)
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is not a valid address; {EXPECTED_URL}")
    if parts.username is not None:
        raise ValueError(
            "contains a user name, which Spark would show in plans and logs; expected an address without user"
        )
    return url


def _idl(answer: dict[str, Any]) -> str:
    idl = answer.get("idl")
    if not isinstance(idl, str):
        raise _RefusedError(f"the response has no schema (idl): {json.dumps(answer)[:100]}")
    return idl
