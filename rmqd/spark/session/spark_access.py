"""Access to RocketMQ for Spark processes, and parsers for options of `load()` and `save()`. No I/O, except for secrets.

Spark passes the values of options as text, and their names in lower case. Spark shows options in plans, in its UI and
in its event logs. So options contain only references to secrets, which each driver or executor process resolves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, TypeVar

from rmqd.client.client_options import ClientOptions, TlsOptions
from rmqd.config.problems import most_similar_name
from rmqd.config.reading.yaml_tree import SubstitutionError, substitute
from rmqd.errors import RmqdError
from rmqd.wire.acl import Credentials

T = TypeVar("T")

_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}", re.ASCII)


class GivenOptions:
    """The options that a user gave. `values` uses rmqd's spelling of the names; `problems` lists all problems."""

    hints_by_wrong_name: ClassVar[Mapping[str, str]] = {}
    """For options of other Spark sources, such as Kafka's: rmqd's option with the same meaning."""

    def __init__(
        self,
        values: Mapping[str, str],
        names: tuple[str, ...],
        *,
        unknown: str = "there is no such option",
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        """Add a problem with the text `unknown` for each option that is neither in `names` nor in `ignored`."""
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
        """Return the parsed value of an option, or `default`. If the value is invalid, add a problem."""
        text = self.values.get(name)
        if text is None:
            return default
        try:
            return parse(text)
        except (RmqdError, ValueError) as error:
            self.add_problem(name, str(error))
            return default

    def parse_fields(self, table: Mapping[str, tuple[str, Callable[[str], Any]]]) -> dict[str, Any]:
        """Return the valid values by field name. `table` maps the name of an option to a field name and a parser."""
        found = {field: self.parse(name, parse, None) for name, (field, parse) in table.items() if name in self.values}
        return {field: value for field, value in found.items() if value is not None}

    def add_problem(self, name: str, text: str) -> None:
        self.problems.append(f"{name}: {text}")


def suggest_name(wrong: str, names: Sequence[str]) -> str:
    """Return the text of a suggestion for an unknown name: the most similar name, or all names if none is similar."""
    guess = most_similar_name(wrong, names)
    return f"did you mean {guess}?" if guess else f"expected one of {', '.join(names)}"


def parse_positive_int(text: str) -> int:
    """Return a number above 0. For other text, raise ValueError, like all parsers in this module."""
    if not text.strip().isdecimal() or int(text) == 0:
        raise ValueError(f"{text!r} is not valid; expected a number above 0")
    return int(text)


def parse_milliseconds_as_seconds(text: str) -> float:
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is not valid; expected a number of milliseconds")
    return int(text) / 1000


def parse_flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(f"{text!r} is not a valid truth value; expected true or false")
    return word == "true"


def option_text(value: Any) -> str:
    """Convert a value to text, as Spark's `option()` does. Values of a list are joined with commas."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(option_text, value)) if isinstance(value, list) else str(value)


def _nameservers(text: str) -> tuple[str, ...]:
    """Return the name server addresses `host:port` in a text that separates them with `;` or commas."""
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
"""Pairs of options. The first option is only valid together with the second option."""


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """The settings of a RocketMQ client. Picklable. With `has_references`, secrets are references such as `${X}`."""

    options: ClientOptions
    has_references: bool = False

    def client_options(self) -> ClientOptions:
        """Return the client's options with secrets, resolved in this process. Raises RmqdError for a missing secret."""
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
        """Return the credentials that sign requests; None if requests are not signed. Raises like `client_options`."""
        options = self.client_options()
        if not options.access_key:
            return None
        return Credentials(options.access_key, options.secret_key, options.security_token)


def read_access(given: GivenOptions) -> ClientAccess:
    """Return the client settings from the options in ACCESS_OPTIONS. Add problems to `given`, and raise nothing."""
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
