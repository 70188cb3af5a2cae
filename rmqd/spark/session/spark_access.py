"""Access to RocketMQ for Spark processes, and parsers for options of `load()` and `save()`. No I/O, except for secrets.

Spark passes all values as text, and all names in lower case. It shows options in plans, in its UI and in its event
logs. So options contain only references to secrets, and each process, on the driver and on executors, resolves them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, TypeVar

from rmqd.client.client_options import ClientOptions, TlsOptions
from rmqd.config.problems import nearest
from rmqd.config.reading.yaml_tree import SubstitutionError, substitute
from rmqd.errors import RmqdError
from rmqd.wire.acl import Credentials

T = TypeVar("T")

_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}", re.ASCII)


class GivenOptions:
    """The given options by their proper names, and a line for each problem."""

    hints_by_wrong_name: ClassVar[Mapping[str, str]] = {}
    """Our options for options of another source."""

    def __init__(
        self,
        values: Mapping[str, str],
        names: tuple[str, ...],
        *,
        unknown: str = "there is no such option",
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        """Options that are not in `names` become problems with the text `unknown`, except those in `ignored`."""
        proper = {name.lower(): name for name in names}
        self.values: dict[str, str] = {}
        self.problems: list[object] = []
        for key, value in values.items():
            if name := proper.get(key.lower()):
                self.values[name] = value
            elif key.lower() not in ignored:
                instead = {name.lower(): meant for name, meant in self.hints_by_wrong_name.items()}.get(key.lower())
                self.add_problem(key, f"{unknown}; " + (f"expected {instead}" if instead else suggest_name(key, names)))

    def parse(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Parse an option; `default` if it is missing. An RmqdError or ValueError becomes a problem."""
        text = self.values.get(name)
        if text is None:
            return default
        try:
            return parse(text)
        except (RmqdError, ValueError) as error:
            self.add_problem(name, str(error))
            return default

    def parse_fields(self, table: Mapping[str, tuple[str, Callable[[str], Any]]]) -> dict[str, Any]:
        """Return the fields that the given options set; `table` has the field and its parser by option."""
        found = {field: self.parse(name, parse, None) for name, (field, parse) in table.items() if name in self.values}
        return {field: value for field, value in found.items() if value is not None}

    def add_problem(self, name: str, text: str) -> None:
        self.problems.append(f"{name}: {text}")


def suggest_name(wrong: str, names: Sequence[str]) -> str:
    """Return a suggestion for an unknown name: the most similar name, or else all names."""
    guess = nearest(wrong, names)
    return f"did you mean {guess}?" if guess else f"expected one of {', '.join(names)}"


def parse_positive_int(text: str) -> int:
    """Return a number above 0. Raises ValueError with the expected value, like all parsers below."""
    if not text.strip().isdecimal() or int(text) == 0:
        raise ValueError(f"{text!r} is not valid; expected a number above 0")
    return int(text)


def parse_milliseconds_as_seconds(text: str) -> float:
    """Convert a number of milliseconds to seconds."""
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is not valid; expected a number of milliseconds")
    return int(text) / 1000


def parse_flag(text: str) -> bool:
    """Return a truth value."""
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(f"{text!r} is not a valid truth value; expected true or false")
    return word == "true"


def option_text(value: Any) -> str:
    """Convert a value to text, like Spark for values in `option()`; a list is joined with commas."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(option_text, value)) if isinstance(value, list) else str(value)


def _nameservers(text: str) -> tuple[str, ...]:
    """Return addresses `host:port`, separated by `;` or commas."""
    addresses = tuple(part.strip() for part in re.split("[;,]", text) if part.strip())
    wrong = [address for address in addresses if not _HOST_PORT.fullmatch(address)]
    if wrong or not addresses:
        raise ValueError(f"{(wrong or [text])[0]!r} is not a valid address; expected host:port")
    return addresses


SECRET_OPTIONS: Final = ("secretKey", "securityToken", "tlsKeyPassword")
TLS_OPTIONS: Final = ("tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsKeyPassword", "tlsVerify", "tlsServerName")
ACCESS_OPTIONS: Final = ("nameserver", "accessKey", "secretKey", "securityToken", "tls", *TLS_OPTIONS)
_NEEDS: Final = (
    ("accessKey", "secretKey"),
    ("secretKey", "accessKey"),
    ("securityToken", "secretKey"),
    ("tlsCertFile", "tlsKeyFile"),
    ("tlsKeyFile", "tlsCertFile"),
)
"""Options, and another option that each needs."""


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """The settings of a client. Picklable. With `has_references` its secrets are references, as in Spark's options."""

    options: ClientOptions
    has_references: bool = False

    def client_options(self) -> ClientOptions:
        """Return the client's options, with references resolved in this process. Raises RmqdError if that fails."""
        if not self.has_references:
            return self.options
        options = self.options
        return replace(
            options,
            access_key=_value("accessKey", options.access_key),
            secret_key=_value("secretKey", options.secret_key),
            security_token=_value("securityToken", options.security_token),
            tls=replace(options.tls, key_password=_value("tlsKeyPassword", options.tls.key_password)),
        )

    def credentials(self) -> Credentials | None:
        """Return the credentials to sign requests; None if they are not signed. Raises like `client_options`."""
        options = self.client_options()
        if not options.access_key:
            return None
        return Credentials(options.access_key, options.secret_key, options.security_token)


def read_access(given: GivenOptions) -> ClientAccess:
    """Return the access that the options in ACCESS_OPTIONS describe. Problems are recorded in `given`."""
    values = given.values
    if "nameserver" not in values:
        given.add_problem("nameserver", "missing; expected host:port, several separated by ;")
    for name in SECRET_OPTIONS:
        if "${" not in values.get(name, "${"):
            given.add_problem(
                name,
                "Spark shows options in plans and logs; expected a reference, which each of Spark's Python processes "
                "resolves: ${NAME} (an environment variable) or ${file:PATH}",
            )
    for one, other in _NEEDS:
        if values.get(one) and not values.get(other):
            given.add_problem(other, f"missing; {one} needs it")
    is_encrypted = given.parse("tls", parse_flag, False)
    for name in TLS_OPTIONS:
        if name in values and not is_encrypted:
            given.add_problem(name, "needs tls=true")
    tls = TlsOptions(
        enabled=is_encrypted,
        ca_file=values.get("tlsCaFile", ""),
        cert_file=values.get("tlsCertFile", ""),
        key_file=values.get("tlsKeyFile", ""),
        verify=given.parse("tlsVerify", parse_flag, True),
        key_password=values.get("tlsKeyPassword", ""),
        server_name=values.get("tlsServerName", ""),
    )
    options = ClientOptions(
        nameservers=given.parse("nameserver", _nameservers, ()),
        access_key=values.get("accessKey", ""),
        secret_key=values.get("secretKey", ""),
        security_token=values.get("securityToken", ""),
        tls=tls,
    )
    return ClientAccess(options, has_references=True)


def _value(name: str, text: str) -> str:
    try:
        return substitute(text, os.environ)
    except SubstitutionError as error:
        raise RmqdError(f"{name}: {error} (in this Spark process)") from None
