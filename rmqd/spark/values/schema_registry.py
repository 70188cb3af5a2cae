"""RocketMQ's schema registry, by the REST API of its release 0.1.0: a subject's latest schema, and what an id means.

A subject is what the registry knows schemas by: mostly a topic's name. A record's id names a version of the subject's
schema. The registry answers an id that it does not know as it answers when its own storage fails, and with a status of
five digits at that. So an id that it refuses is taken as unknown only if it still tells the subject's latest schema,
and then refuses the id again. What a proxy says of itself, or of whoever asks, is no answer about an id.
"""

from __future__ import annotations

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
from rmqd.spark.patience import patiently

API: Final = "/schema-registry/v1"
TIMEOUT_SECONDS: Final = 10.0
ACCEPTED: Final = "accepted: http://HOST:PORT of RocketMQ's schema registry"
_KEPT_SCHEMAS: Final = 1024
_OF_THE_MOMENT: Final = (401, 403, 408, 429, *range(500, 600))  # of access, load and failures: bodies may be good
_LONG_STATUS: Final = re.compile(r"HTTP/1\.[01] ([0-9]{4,})")


class RegistryAwayError(RmqdError):
    """The registry does not answer, or cannot say what it should: the bodies may be good."""


class UnknownRecordError(ValueError):
    """The registry has no such record: the body cannot be read, however often it is tried."""


class _RefusedError(Exception):
    """The registry answers that it does not have what was asked for, or that something is wrong with it."""


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """One subject of a registry. Pickles; every process asks for itself, and keeps what it was told."""

    url: str
    subject: str = ""
    patience_seconds: float = 0.0
    """How long an executor bears with a registry that is away."""

    @property
    def shown(self) -> str:
        """For people."""
        return f"the subject {self.subject} of {self.url}"

    def latest(self) -> str:
        """The subject's latest schema. Raises RegistryAwayError where it cannot be had."""
        try:
            return _idl(self._asked(f"/subject/{quote(self.subject, safe='')}/schema"))
        except _RefusedError as error:
            raise RegistryAwayError(
                f"{self.url} has no schema of the subject {self.subject}: it answers {error}; accepted: a subject that "
                "is registered there, as valueSubject"
            ) from None

    def written_by(self, record_id: int) -> Any:
        """The schema that a record was written by, as fastavro has parsed it.

        Raises UnknownRecordError for an id that the registry does not have, and RegistryAwayError where it does not
        answer for longer than it is waited for.
        """
        return _written_by(self, record_id)

    def ask_written_by(self, record_id: int) -> Any:
        """The same, of the registry itself and at once."""
        import fastavro

        path = f"/subject/{quote(self.subject, safe='')}/recordId/{record_id}/schema"
        try:
            answer = self._asked(path)
        except _RefusedError:
            self.latest()  # it works, then; it may have failed for a moment
            try:
                answer = self._asked(path)
            except _RefusedError as error:
                raise UnknownRecordError(f"{self.shown} has no record {record_id}: it answers {error}") from None
        if answer.get("recordId") != record_id:
            raise UnknownRecordError(
                f"{self.shown} has the record {answer.get('recordId')} as version {answer.get('version')}, and the "
                f"body was written by the record {record_id}: is it of another subject?"
            )
        try:
            return fastavro.parse_schema(json.loads(_idl(answer)))
        except Exception as error:  # noqa: BLE001  fastavro raises many kinds
            raise UnknownRecordError(f"{self.shown} has no schema of Avro as record {record_id}: {error!r}") from None

    def _asked(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}{API}{path}", headers={"Accept": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                document = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                told = f"{error.code} {_first_line(error.read())}".strip()
            if error.code in _OF_THE_MOMENT:
                raise RegistryAwayError(f"{self.url} does not tell schemas: it answers {told}") from None
            raise _RefusedError(told) from None
        except http.client.BadStatusLine as error:
            if found := _LONG_STATUS.match(str(error)):
                raise _RefusedError(found[1]) from None
            raise RegistryAwayError(f"{self.url} does not speak HTTP: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise RegistryAwayError(f"{self.url} does not answer: {reason or type(error).__name__}") from error
        except ValueError as error:
            raise RegistryAwayError(f"{self.url}{API} does not answer with JSON: {error}; {ACCEPTED}") from None
        if not isinstance(document, dict):
            raise RegistryAwayError(f"{self.url}{API} answers with no schema; {ACCEPTED}")
        return document


@functools.lru_cache(_KEPT_SCHEMAS)
def _written_by(registry: SchemaRegistry, record_id: int) -> Any:
    """Kept for the life of the process: what an id means never changes."""
    return patiently(lambda: registry.ask_written_by(record_id), registry.patience_seconds)


def registry_url(text: str) -> str:
    """The address of a registry as an option has it. Raises ValueError with what is accepted."""
    url = text.strip().rstrip("/").removesuffix(API)
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is no address; {ACCEPTED}")
    if parts.username is not None:
        raise ValueError("has a user in it, and Spark shows options in plans and logs; accepted: an address without")
    return url


def _idl(answer: dict[str, Any]) -> str:
    idl = answer.get("idl")
    if not isinstance(idl, str):
        raise _RefusedError(f"without an idl: {json.dumps(answer)[:100]}")
    return idl


def _first_line(content: bytes) -> str:
    return content.decode(errors="replace").strip().partition("\n")[0][:200]
