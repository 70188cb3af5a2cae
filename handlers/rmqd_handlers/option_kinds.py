"""Shared option types of the handlers, and the libraries and connection parameters that they need.

Sizes and durations have the notation of rmqd's configuration: `256KiB`, `5s`. A database URL is refused if libpq cannot
parse it, or if an unescaped @ in the password would become part of the host. Error texts never contain the URL. Some
libraries are installed only with an extra, which the error names. Column types are plain names, and do not need
pyarrow.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from rmqd_handlers.message_values import MAX_DIGITS


class HandlerOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True)


def option(default: Any, description: str, **checks: Any) -> Any:
    """Return a field for an optional option. `checks` are constraints of pydantic, such as `gt`."""
    if default in ({}, []):
        return Field(default_factory=type(default), description=description, **checks)
    return Field(default, description=description, **checks)


MAX_CONNECTIONS: Final[Any] = option(4, "connections of this process; further batches wait for one", ge=1, le=1000)
SIZE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
DURATION_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_size_bytes(value: object) -> int:
    """Parse `100MiB` as a number of bytes. A number without a unit is an error."""
    size_bytes = _parse(value, SIZE_UNITS, "a size such as 256KiB or 100MiB")
    if not size_bytes.is_integer():
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(size_bytes)


def parse_duration_seconds(value: object) -> float:
    """Parse `500ms` as a number of seconds. A number without a unit is an error."""
    return _parse(value, DURATION_UNITS, "a duration such as 500ms, 5s or 15m")


def _parse(value: object, units: dict[str, int] | dict[str, float], accepted: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)", value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError(f"{value!r} is not {accepted} (units: {', '.join(units)})")
    return float(match[1]) * units[match[2]]


SizeBytes = Annotated[int, BeforeValidator(parse_size_bytes, json_schema_input_type=str)]
DurationSeconds = Annotated[float, BeforeValidator(parse_duration_seconds, json_schema_input_type=str)]


class ExtraMissingError(ImportError):
    """A library that the handler needs is missing."""


def require(module: str, extra: str) -> None:
    """Raise ExtraMissingError with the command to install it if `module` is missing."""
    if importlib.util.find_spec(module) is None:
        raise ExtraMissingError(
            f"{module} is not installed; run pip install './handlers[{extra}]' in the source of rmqd"
        )


_LIBPQ: Final = re.compile("postgres(?:ql)?://([^/?#]*)")
_UNREADABLE: Final = (
    "not a valid connection string; expected postgresql://user:password@host:5432/database, "
    "or host=... user=... dbname=..."
)
_PROBLEM: Final = "more than one @ before the host; expected %40 for an @ in the user or the password"


def _read_by_libpq(url: SecretStr) -> SecretStr:
    """Check a URL for libpq, which ends the password at the first @. Keywords such as `password=a@b` may have an @."""
    uri = _LIBPQ.match(url.get_secret_value())
    if uri is not None and uri[1].count("@") > 1:
        raise ValueError(_PROBLEM)
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:  # the handler's constructor reports the missing library
        return url
    try:
        conninfo_to_dict(url.get_secret_value())
    except ProgrammingError:  # the error quotes the URL
        raise ValueError(_UNREADABLE) from None
    return url


def _read_by_sqlalchemy(url: SecretStr) -> SecretStr:
    """Check a URL for SQLAlchemy: the user may contain an @, but the first @ in the password ends the password."""
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError:  # the handler's constructor reports the missing library
        return url
    try:
        host = make_url(url.get_secret_value()).host
    except (ArgumentError, ValueError):  # the handler's start reports the error
        return url
    if host is not None and "@" in host:
        raise ValueError(_PROBLEM)
    return url


LibpqUrl = Annotated[SecretStr, AfterValidator(_read_by_libpq)]
SqlAlchemyUrl = Annotated[SecretStr, AfterValidator(_read_by_sqlalchemy)]


CONNECT_SECONDS: Final = 5
"""The timeout for connecting to a database server."""
PARAMETERS: Final[Mapping[str, Any]] = {
    "connect_timeout": CONNECT_SECONDS,
    "fallback_application_name": "rmqd",
    "client_encoding": "UTF8",  # by default the database's, in which the driver cannot send each text
    # a host that fails silently is detected after 25 s, while waiting for a response and while sending
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
BACKEND_PID: Final = "SELECT pg_backend_pid()"
"""Selects the id of the server's process. Behind a pool such as PgBouncer, the connection object has another id."""


def conninfo_of(url: str) -> str:
    """Return libpq's connection string for a URL, with `PARAMETERS` as defaults."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    return make_conninfo(**{**PARAMETERS, **conninfo_to_dict(url)})


NAMES: Final = "string binary int32 int64 float64 boolean timestamp date".split()
ACCEPTED: Final = f"{', '.join(NAMES)} or decimal(PRECISION, SCALE), with at most {MAX_DIGITS} digits"
_DECIMAL: Final = re.compile(r"decimal\(([0-9]{1,2}), ?([0-9]{1,2})\)")


def checked_type(name: str) -> str:
    if name not in NAMES and decimal_of(name) is None:
        raise ValueError(f"{name!r} is not a type; expected {ACCEPTED}")
    return name


def decimal_of(name: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type; None for other types."""
    match = _DECIMAL.fullmatch(name)
    if match is None or not 1 <= int(match[1]) <= MAX_DIGITS or int(match[2]) > int(match[1]):
        return None
    return int(match[1]), int(match[2])


TypeName = Annotated[str, AfterValidator(checked_type)]
