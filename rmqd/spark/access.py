"""Access to RocketMQ for Spark processes: name servers, keys and TLS, from options or from a group's configuration.

Spark shows options in plans, in its UI and in its event logs. So options contain only references to secrets, and each
process, on the driver and on executors, resolves them itself. No other I/O.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from rmqd.client.options import ClientOptions, TlsOptions
from rmqd.config.reading.substitution import SubstitutionError, substitute
from rmqd.errors import RmqdError
from rmqd.spark.option_values import nameservers
from rmqd.wire.acl import Credentials

SECRET: Final = ("secretKey", "securityToken", "tlsKeyPassword")
TLS: Final = ("tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsKeyPassword", "tlsVerify", "tlsServerName")
NAMES: Final = ("nameserver", "accessKey", "secretKey", "securityToken", "tls", *TLS)


@dataclass(frozen=True, slots=True)
class Access:
    """The settings of a client. Picklable. `has_references`: secrets are references, as in options."""

    options: ClientOptions
    has_references: bool = False

    @property
    def nameserver(self) -> str:
        """The name servers, for display."""
        return self.options.shown_nameserver

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


def read_access(values: Mapping[str, str]) -> tuple[Access, list[str]]:
    """Read the options in NAMES, given by their proper names. Return also a line for each problem."""
    problems = []
    servers: tuple[str, ...] = ()
    if "nameserver" not in values:
        problems.append("nameserver: missing; expected host:port, several separated by ;")
    else:
        try:
            servers = tuple(nameservers(values["nameserver"]).split(";"))
        except ValueError as error:
            problems.append(f"nameserver: {error}")
    for name in SECRET:
        if "${" not in values.get(name, "${"):
            problems.append(
                f"{name}: Spark shows options in plans and logs; expected a reference, which each of Spark's Python "
                "processes resolves: ${NAME} (an environment variable) or ${file:PATH}"
            )
    for one, other in (("accessKey", "secretKey"), ("secretKey", "accessKey"), ("securityToken", "secretKey")):
        if values.get(one) and not values.get(other):
            problems.append(f"{other}: missing; {one} needs it")
    tls, more = _read_tls(values)
    options = ClientOptions(
        nameservers=servers,
        access_key=values.get("accessKey", ""),
        secret_key=values.get("secretKey", ""),
        security_token=values.get("securityToken", ""),
        tls=tls,
    )
    return Access(options, has_references=True), problems + more


def _read_tls(values: Mapping[str, str]) -> tuple[TlsOptions, list[str]]:
    flags, problems = {"tls": False, "tlsVerify": True}, []
    for name in flags.keys() & values.keys():
        word = values[name].strip().lower()
        if word not in ("true", "false"):
            problems.append(f"{name}: {values[name]!r} is not a valid truth value; expected true or false")
        flags[name] = word == "true"
    if not flags["tls"]:
        problems += [f"{name}: needs tls=true" for name in TLS if name in values]
    for one, other in (("tlsCertFile", "tlsKeyFile"), ("tlsKeyFile", "tlsCertFile")):
        if values.get(one) and not values.get(other):
            problems.append(f"{other}: missing; {one} needs it")
    tls = TlsOptions(
        enabled=flags["tls"],
        ca_file=values.get("tlsCaFile", ""),
        cert_file=values.get("tlsCertFile", ""),
        key_file=values.get("tlsKeyFile", ""),
        verify=flags["tlsVerify"],
        key_password=values.get("tlsKeyPassword", ""),
        server_name=values.get("tlsServerName", ""),
    )
    return tls, problems


def _value(name: str, text: str) -> str:
    try:
        return substitute(text, os.environ)
    except SubstitutionError as error:
        raise RmqdError(f"{name}: {error} (in this Spark process)") from None
