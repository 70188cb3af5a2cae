"""The errors that rmqd raises, and the exit codes of its command (69 and 78 as in sysexits.h).

Errors for responses of servers are in `rmqd.errors.broker_errors`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path


class RmqdError(Exception):
    """Base of all errors of rmqd."""

    is_reported: bool = False
    """Whether the client itself reports this error, once a minute. Callers need not log it.

    Refused requests and addresses with an open circuit (`CircuitOpenError`) recur every few seconds for every queue.
    One line for all of them is enough.
    """


def install_command(extra: str) -> str:
    """Return the command that installs an extra's packages. It does not name rmqd, which is in no package index."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        needed = [one.partition(";") for one in requires("rmqd") or ()]
    except PackageNotFoundError:  # the source without an installation
        needed = []
    names = [f"'{name.strip()}'" for name, _, marker in needed if marker.replace('"', "'").endswith(f"'{extra}'")]
    return " ".join(["pip install", *names]) if names else f"pip install '.[{extra}]' in the source of rmqd"


class ProtocolError(RmqdError):
    """Bytes from a peer that violate the protocol. Decoding raises only this error."""


class BodyTooLargeError(ProtocolError):
    """A body of more than `max_body_size`, after its decompression if it is compressed."""

    def __init__(self, max_size_bytes: int) -> None:
        super().__init__(f"the body has more than {max_size_bytes} bytes (max_body_size)")


class InvalidNameError(RmqdError):
    """RocketMQ would refuse the name of a topic or group, or a tag expression. The text explains the rule."""


class InvalidMessageError(RmqdError):
    """A message that cannot be sent: too large, or a property that the wire format cannot carry."""


class LightQueueError(RmqdError):
    """rmqd does not support a light message queue here, because other clients do not find its offsets."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic} is a light message queue: read it with engine: local, or read the topic it is built on"
        )


class StaticTopicError(RmqdError):
    """rmqd does not support a static topic here, because its queues move between brokers."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic} is a static topic (mqadmin updateStaticTopic): read it with engine: local, or in Java"
        )


class OffsetResetError(RmqdError):
    """The reset of a group's offsets was refused: it is impossible, or would not have the requested effect."""


class ConfigError(RmqdError):
    """A configuration cannot be used. `problems` has one entry for each problem."""

    def __init__(self, problems: list[object]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class SettingError(RmqdError, TypeError, ValueError):
    """An unknown keyword of a pull consumer, or an invalid value."""


class PullConsumerError(RmqdError):
    """A pull consumer cannot do the requested operation. The text gives the next step."""


class TlsFileError(RmqdError):
    """A file of the TLS settings cannot be used. `key` is its key below client.tls."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"client.tls.{key}: {message}")
        self.key = key
        self.message = message


class OffsetStoreError(RmqdError):
    """A group's offsets cannot be read from, or written to, their file or store (`rmqd.offset_stores`)."""

    rmqd_wait_seconds = (
        1.0  # `decisions.WAIT_ATTRIBUTE`: if a handler's call raises it, that says nothing about the messages
    )


class StorageError(RmqdError):
    """The embedded broker's data directory cannot be locked, read or written."""


class InUseError(RmqdError):
    """Another process uses a folder that only one process may use. `owner` identifies that process, or is empty."""

    def __init__(self, path: Path, owner: str) -> None:
        by = f"process {owner}" if owner else "another process"
        super().__init__(
            f"{path.parent} is in use by {by}, which has locked {path}: two processes would overwrite each other's "
            "offsets; stop that process, or set another state_dir for this one"
        )
        self.owner = owner


class RemotingError(RmqdError):
    """A request failed without a response. `address` is the peer's "host:port"."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class RemotingConnectError(RemotingError):
    """No connection to the peer could be made."""


class TlsError(RemotingConnectError):
    """One end does not trust the other, or only one of them uses TLS. The text gives the next step."""

    is_reported = True


class CircuitOpenError(RemotingConnectError):
    """Nothing was sent: the address failed recently, and its circuit is still open. The text has the reason."""

    is_reported = True


class RemotingTimeoutError(RemotingError):
    """The peer did not respond before the deadline. It may have processed the request, or may still do so."""

    on_late: Callable[[Callable[[bool], None]], None] | None = None
    """Registers a callback for the time after the deadline. It is called once: with True when the response arrives, or
    with False when the connection ends first. None if the request was never sent.
    """


class RemotingClosedError(RemotingError):
    """The connection ended before the response arrived. The peer may have processed the request."""


class ConnectionRenewedError(RemotingClosedError):
    """The connection was replaced by one with other TLS settings, or to another address. Retry at once."""


class NameServerError(RemotingError):
    """No name server responded. `address` has all their addresses, separated by `;`."""

    def __init__(self, address: str, message: str, *, is_reported: bool = False) -> None:
        RmqdError.__init__(self, message)
        self.address = address
        self.reason = message
        self.is_reported = is_reported


class NoBrokerError(RemotingError):
    """The name servers know no broker with a master: all are down, or none was started."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "the name server knows no broker; start a broker, or check its namesrvAddr")


class RouteNotFoundError(RmqdError):
    """No name server knows the topic."""

    def __init__(self, topic: str, message: str = "") -> None:
        super().__init__(message or f"no route for topic {topic}: it does not exist, or no broker serves it")
        self.topic = topic


class BrokerAwayError(RouteNotFoundError):
    """No route has an address of the broker: it is down, or is being replaced."""

    is_reported = True

    def __init__(self, topic: str, broker_name: str) -> None:
        super().__init__(topic, f"no route has an address of broker {broker_name}: it is down, or was removed")


class SlaveUnawareError(RemotingError):
    """A slave has no offset of a queue, and no route has the master, which may have one. Slaves copy offsets every 10
    s.
    """

    is_reported = True


class FilterRefusedError(RmqdError):
    """A broker refuses a group's filter expression for a topic. The text gives the next step."""

    def __init__(self, topic: str, message: str) -> None:
        super().__init__(message)
        self.topic = topic


class DataLossError(RmqdError):
    """Messages that should be read are no longer on the broker. Offsets belong to `queue`; ends are exclusive.

    `held` is the range of offsets on the broker; None if no name server knows the broker.
    """

    def __init__(self, queue: object, lost: tuple[int, int], held: tuple[int, int] | None) -> None:
        if held is None:
            reason = "no name server knows its broker anymore"
        elif held[0] <= lost[0] and lost[1] <= held[1]:
            reason = "the broker has other messages there, because the topic was recreated"
        else:
            reason = f"the broker has {f'{held[0]} to {held[1] - 1}' if held[0] < held[1] else 'none'}"
        super().__init__(f"data loss in {queue}: offsets {lost[0]} to {lost[1] - 1} are missing: {reason}")


class GroupRefusedError(RmqdError):
    """The group cannot run with its configuration on this cluster. Retrying does not help, so the group ends."""


class GroupHeldElsewhereError(GroupRefusedError):
    """The group runs on the other engine, and only one engine may run it. `client_id` is a member of that engine."""

    def __init__(self, group: str, here: str, engine: str, client_id: str, host: str) -> None:
        who = "a member on engine: spark" if engine == "spark" else "a member on engine: local, or another client,"
        super().__init__(
            f"group {group} runs elsewhere: {who} runs it on {host} ({client_id}), and this is {here}. A group can use "
            "only one engine at a time; stop it there, and this member continues at its offsets"
        )
        self.engine = engine
        self.client_id = client_id


class PopNotSupportedError(GroupRefusedError):
    """The group uses POP, but its brokers are RocketMQ 4, which does not support POP, or a proxy."""

    def __init__(self, group: str, address: str) -> None:
        super().__init__(
            f"consume_mode: pop needs RocketMQ 5, but the broker at {address} does not support POP (request 400); "
            "upgrade the brokers, or, if this is a proxy, connect to the name server instead; or set "
            f"consume_mode: concurrently for {group}"
        )


class StaticTopicNotPoppedError(GroupRefusedError):
    """A pop group subscribes to a static topic. Brokers would pop its queues under their local numbers."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic} is a static topic (mqadmin updateStaticTopic), which POP cannot read; set consume_mode: "
            "concurrently or orderly, or run rmqd groups mode GROUP TOPIC pull"
        )


class LiteTopicsRefusedError(GroupRefusedError):
    """A group consumes lite topics, but on a broker the group or its topic is not set up for them."""


class UnknownTopicKindError(GroupRefusedError):
    """A topic's settings on a broker show a kind of topic that rmqd does not know."""

    def __init__(self, topic: str, where: str, marks: list[str]) -> None:
        super().__init__(
            f"{topic} on {where} has {' and '.join(marks)}, which this version of rmqd does not know. rmqd does not "
            "read the topic, because it could misinterpret it; use a newer version, or remove the topic from the "
            "group's subscriptions (mqadmin updateTopic -a changes some of these settings)"
        )


class BrokerTooOldError(RmqdError):
    """The broker is too old for a request: it would accept the request, but do something else."""


class ExitCode(IntEnum):
    """The exit codes of the command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    UNAVAILABLE = 69
    """A name server, a broker or a running daemon could not be reached."""
    CONFIG = 78
    """The configuration is wrong; nothing was connected."""
    INTERRUPTED = 130
    """Ctrl-C interrupted a command that ends on its own. Commands that run until they are stopped exit with OK at the
    first Ctrl-C.
    """
