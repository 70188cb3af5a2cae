"""The errors that rmqd raises, and the exit codes of the command `rmqd` (69 and 78 are from sysexits.h).

The errors for error responses of brokers and name servers are in `rmqd.errors.broker_errors`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path


class RmqdError(Exception):
    """Base of all errors of rmqd."""

    is_reported: bool = False
    """Whether the client logs this error itself, so that callers need not log it.

    Refused requests and addresses with an open circuit (`CircuitOpenError`) cause errors every few seconds, for every
    queue. The client logs one line a minute for all of them.
    """


def install_command(extra: str) -> str:
    """Return a pip command that installs the packages of an extra by name, because rmqd is not in a package index."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        needed = [one.partition(";") for one in requires("rmqd") or ()]
    except PackageNotFoundError:  # the source without an installation
        needed = []
    names = [f"'{name.strip()}'" for name, _, marker in needed if marker.replace('"', "'").endswith(f"'{extra}'")]
    return " ".join(["pip install", *names]) if names else f"pip install '.[{extra}]' in the source of rmqd"


class ProtocolError(RmqdError):
    """A peer's bytes violate the protocol. Decoding functions raise only this error."""


class BodyTooLargeError(ProtocolError):
    """A message's body exceeds `max_body_size`. The size after decompression counts."""

    def __init__(self, max_size_bytes: int) -> None:
        super().__init__(f"the body has more than {max_size_bytes} bytes (max_body_size)")


class InvalidNameError(RmqdError):
    """RocketMQ would refuse a topic name, a group name or a filter expression. The error text explains the rule."""


class InvalidMessageError(RmqdError):
    """A message cannot be sent, because it is too large, or a property cannot be encoded."""


class LightQueueError(RmqdError):
    """`engine: spark` does not support light message queues, because other clients do not find their offsets."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic} is a light message queue: read it with engine: local, or read the topic it is built on"
        )


class StaticTopicError(RmqdError):
    """`engine: spark` does not support static topics, because their queues move between brokers."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic} is a static topic (mqadmin updateStaticTopic): read it with engine: local, or with a Java client"
        )


class OffsetResetError(RmqdError):
    """rmqd refuses to reset a group's offsets: the reset is not possible, or would not have the requested effect."""


class ConfigError(RmqdError):
    """A configuration cannot be used. `problems` has one entry for each problem."""

    def __init__(self, problems: list[object]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class ConfigMissingError(ConfigError):
    """No configuration was named, and no default path has one."""


class SettingError(RmqdError, TypeError, ValueError):
    """A pull consumer was created with an unknown keyword argument, or with an invalid value."""


class PullConsumerError(RmqdError):
    """A pull consumer cannot do the requested operation. The error text says what to do."""


class TlsFileError(RmqdError):
    """A file in the TLS settings cannot be used. `key` is the setting below client.tls, such as `ca_file`."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"client.tls.{key}: {message}")
        self.key = key
        self.message = message


class OffsetStoreError(RmqdError):
    """A group's offsets cannot be read from, or written to, their file or store (`rmqd.offset_stores`)."""

    rmqd_wait_seconds = (
        1.0  # seconds to wait before a retry (`decisions.WAIT_ATTRIBUTE`), because the messages are not at fault
    )


class QueueTakenError(OffsetStoreError):
    """Another member has acquired the queue in the group's own store."""


class StorageError(RmqdError):
    """The embedded broker's data directory cannot be locked, read or written."""


class InUseError(RmqdError):
    """Another process has locked a folder that only one process may use. `owner` names that process, or is empty."""

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
    """A connection to the peer could not be opened."""


class TlsError(RemotingConnectError):
    """Client or server does not trust the other's certificate, or only one uses TLS. The error text says what to do."""

    is_reported = True


class CircuitOpenError(RemotingConnectError):
    """A request was not sent, because its address failed recently and the circuit breaker is still open."""

    is_reported = True


class RemotingTimeoutError(RemotingError):
    """The peer did not respond before the deadline. It may have processed the request, or may process it later."""

    on_late: Callable[[Callable[[bool], None]], None] | None = None
    """Registers a callback for a late response; None if the request was never sent.

    The callback is called once: with True if the response arrives, with False if the connection ends first."""


class RemotingClosedError(RemotingError):
    """The connection ended before the response arrived. The peer may have processed the request."""


class ConnectionRenewedError(RemotingClosedError):
    """The connection was replaced, as after new TLS settings, a new address, a silence or GO_AWAY. Retry at once."""


class NameServerError(RemotingError):
    """No name server responded. `address` contains the addresses of all name servers, separated by `;`."""

    def __init__(self, address: str, message: str, *, is_reported: bool = False) -> None:
        RmqdError.__init__(self, message)
        self.address = address
        self.reason = message
        self.is_reported = is_reported


class NoBrokerError(RemotingError):
    """The name servers have no broker with a master: all brokers are down, or were not started."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "the name server knows no broker; start a broker, or check its namesrvAddr")


class RouteNotFoundError(RmqdError):
    """The name servers have no route of the topic."""

    def __init__(self, topic: str, message: str = "") -> None:
        super().__init__(message or f"no route for topic {topic}: it does not exist, or no broker serves it")
        self.topic = topic


class BrokerUnknownError(RouteNotFoundError):
    """No topic's route contains the broker: it is down, or is being replaced."""

    is_reported = True

    def __init__(self, topic: str, broker_name: str) -> None:
        super().__init__(topic, f"no route has an address of broker {broker_name}: it is down, or was removed")


class SlaveOffsetMissingError(RemotingError):
    """A slave has no offset of a group in a queue. The master may have one, but no route contains the master.

    Slaves copy the master's offsets every 10 s.
    """

    is_reported = True


class FilterRefusedError(RmqdError):
    """A broker refuses a group's filter expression for a topic. The error text says what to do."""

    def __init__(self, topic: str, message: str) -> None:
        super().__init__(message)
        self.topic = topic


class DataLossError(RmqdError):
    """Messages of `queue` that rmqd should read are not on the broker any more.

    `lost` is the range of their offsets, `held` the range on the broker; None if no name server knows the broker.
    Range ends are exclusive.
    """

    def __init__(self, queue: object, lost: tuple[int, int], held: tuple[int, int] | None) -> None:
        if held is None:
            reason = "no name server knows the queue's broker anymore"
        elif held[0] <= lost[0] and lost[1] <= held[1]:
            reason = "the broker has other messages there, because the topic was recreated"
        else:
            reason = f"the broker has {f'{held[0]} to {held[1] - 1}' if held[0] < held[1] else 'none'}"
        super().__init__(f"data loss in {queue}: offsets {lost[0]} to {lost[1] - 1} are missing: {reason}")


class GroupRefusedError(RmqdError):
    """The group cannot run with its configuration on this cluster. A retry would not help, so rmqd stops the group."""


class GroupHeldElsewhereError(GroupRefusedError):
    """The group already runs on another engine (member `client_id`). A group can use only one engine at a time."""

    def __init__(self, group: str, here: str, engine: str, client_id: str, host: str) -> None:
        who = "engine: spark" if engine == "spark" else "engine: local, or with another client"
        super().__init__(
            f"group {group} runs elsewhere: on {host} ({client_id}), with {who}. A group can use only one engine "
            f"at a time; stop the group there, and this member ({here}) continues at its offsets"
        )
        self.engine = engine
        self.client_id = client_id


class PopNotSupportedError(GroupRefusedError):
    """The group uses POP, but the broker does not support POP: it is RocketMQ 4, or a proxy."""

    def __init__(self, group: str, address: str) -> None:
        super().__init__(
            f"consume_mode: pop needs RocketMQ 5, but the broker at {address} does not support POP (request 400); "
            "upgrade the brokers, or, if this is a proxy, connect to the name server instead; or set "
            f"consume_mode: concurrently for {group}"
        )


class StaticTopicNotPoppedError(GroupRefusedError):
    """A group that uses POP subscribes to a static topic, whose logical queue ids and offsets POP does not know."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic} is a static topic (mqadmin updateStaticTopic), which POP cannot read; set consume_mode: "
            "concurrently or orderly, or run rmqd groups mode GROUP TOPIC pull"
        )


class LiteTopicsRefusedError(GroupRefusedError):
    """A group consumes lite topics, but a broker's settings of the group or of the parent topic do not allow that."""


class UnknownTopicKindError(GroupRefusedError):
    """A broker's settings of a topic have values that rmqd does not know, so rmqd could misread the topic."""

    def __init__(self, topic: str, where: str, marks: list[str]) -> None:
        super().__init__(
            f"{topic} on {where} has {' and '.join(marks)}, which this version of rmqd does not know. rmqd does not "
            "read the topic, because it could misinterpret it; use a newer version, or remove the topic from the "
            "group's subscriptions (mqadmin updateTopic -a changes some of these settings)"
        )


class BrokerTooOldError(RmqdError):
    """The broker is too old for a request: it would accept the request, but process it in another way."""


class ExitCode(IntEnum):
    """The exit codes of the command `rmqd`."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    UNAVAILABLE = 69
    """A name server, a broker or a running daemon could not be reached."""
    CONFIG = 78
    """The configuration is wrong. No connection was opened."""
    INTERRUPTED = 130
    """Ctrl-C interrupted a command before its normal end.

    A command that runs until it is stopped exits with OK at the first Ctrl-C."""
