"""Every error that rmqd raises, on one page; those that servers answer with are in `rmqd.broker_errors`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class RmqdError(Exception):
    """Base of all errors of rmqd."""

    is_reported: bool = False
    """Whether the client reports this error by itself, once a minute. Who receives such an error need not log it.

    Refusals and addresses that are left alone (`CircuitOpenError`) come again within seconds, at every queue. One line
    for all of them is enough.
    """


class ProtocolError(RmqdError):
    """Bytes from a peer that are not what the protocol says. Decoding raises this and nothing else."""


class BodyTooLargeError(ProtocolError):
    """A body that decompresses to more than `max_body_size`."""

    def __init__(self, max_size_bytes: int) -> None:
        super().__init__(f"the body decompresses to more than {max_size_bytes} bytes")


class InvalidNameError(RmqdError):
    """RocketMQ would refuse the name of a topic or group, or a tag expression. The text has the rule."""


class InvalidMessageError(RmqdError):
    """A message that cannot be sent: too large, or a property that the wire format cannot carry."""


class LightQueueError(RmqdError):
    """A light message queue, whose offsets are not where others find them, is used where rmqd does not support that."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"{topic} is a light message queue: read it with engine: local, or read the topic it is over")


class StaticTopicError(RmqdError):
    """A static topic, whose queues move between brokers, is used where rmqd does not support that."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic} is a static topic (mqadmin updateStaticTopic): read it with engine: local, or in Java"
        )


class OffsetResetError(RmqdError):
    """An operator's move of a group that is refused: it cannot be done, or would not do what it says."""


class ConfigError(RmqdError):
    """A configuration cannot be used. `problems` has one entry for each problem."""

    def __init__(self, problems: list[object]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class SettingError(RmqdError, TypeError, ValueError):
    """A keyword of a pull consumer is not known, or its value is not accepted."""


class PullConsumerError(RmqdError):
    """A pull consumer cannot do what the program asks for. The text says what to do."""


class TlsFileError(RmqdError):
    """A file of the TLS settings cannot be used. `key` is its key below client.tls."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"client.tls.{key}: {message}")
        self.key = key
        self.message = message


class OffsetStoreError(RmqdError):
    """A group's offsets cannot be read or written, in the file or the store (`rmqd.offset_stores`) that has them."""

    rmqd_wait_seconds = 1.0  # `decisions.WAIT`: raised by a handler's call, it tells nothing of the messages


class StorageError(RmqdError):
    """The embedded broker's data dir cannot be locked, read or written."""


class InUseError(RmqdError):
    """Another process uses a folder that only one process may use. `owner` is its own name for itself, or empty."""

    def __init__(self, path: Path, owner: str) -> None:
        by = f"process {owner}" if owner else "another process"
        super().__init__(
            f"{path.parent} is in use by {by}, which has locked {path}: two processes would overwrite each other's "
            "offsets; end that one, or give this one a state_dir of its own"
        )
        self.path = path
        self.owner = owner


class RemotingError(RmqdError):
    """A request got no answer. `address` is the peer's "host:port"."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class RemotingConnectError(RemotingError):
    """No connection to the peer could be made."""


class TlsError(RemotingConnectError):
    """One end does not trust the other one, or only one of them speaks TLS. The text says what to do."""

    is_reported = True


class CircuitOpenError(RemotingConnectError):
    """Nothing was sent, because the address failed a moment ago and is left alone. The text has the reason."""

    is_reported = True


class RemotingTimeoutError(RemotingError):
    """The peer did not answer within the request's deadline. It may have processed the request, or still do so."""

    on_late: Callable[[Callable[[bool], None]], None] | None = None
    """Registers a callback for the time after the deadline. It is called once: with True when the answer comes, with
    False when the connection ends, so that none can come. None if the request was never sent."""


class RemotingClosedError(RemotingError):
    """The connection ended while the request waited for its answer. The peer may have processed the request."""


class ConnectionRenewedError(RemotingClosedError):
    """The connection was replaced, by one with other TLS settings or to another address. Ask again at once."""


class NameServerError(RemotingError):
    """None of the name servers answered. `address` has all their addresses, separated by `;`."""

    def __init__(self, address: str, message: str, *, is_reported: bool = False) -> None:
        RmqdError.__init__(self, message)
        self.address = address
        self.reason = message
        self.is_reported = is_reported


class NoBrokerError(RemotingError):
    """The name servers know no broker with a master: all are down, or none was started."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "the name server knows no broker; is one up, and registered?")


class RouteNotFoundError(RmqdError):
    """No name server knows the topic."""

    def __init__(self, topic: str, message: str = "") -> None:
        super().__init__(message or f"no route for topic {topic}: it does not exist, or no broker serves it")
        self.topic = topic


class BrokerAwayError(RouteNotFoundError):
    """No route names an address of the broker: it is down, or is being replaced."""

    is_reported = True

    def __init__(self, topic: str, broker_name: str) -> None:
        super().__init__(topic, f"no route names an address of broker {broker_name}: it is down, or was taken away")


class SlaveUnawareError(RemotingError):
    """A slave knows no offset of a queue. Its master may, which no route names: slaves copy offsets every 10 s."""

    is_reported = True


class FilterRefusedError(RmqdError):
    """A broker refuses the expression by which a group filters a topic. The text says what to do."""

    def __init__(self, topic: str, message: str) -> None:
        super().__init__(message)
        self.topic = topic


class DataLossError(RmqdError):
    """Messages that were to be read are no longer on the broker. Offsets are of `queue`, with exclusive ends.

    `held` is the range that the broker has; None if no name server knows the broker any more.
    """

    def __init__(self, queue: object, lost: tuple[int, int], held: tuple[int, int] | None) -> None:
        if held is None:
            reason = "no name server knows its broker any more"
        elif held[0] <= lost[0] and lost[1] <= held[1]:
            reason = "the broker holds other messages there, because the topic was created again"
        else:
            reason = f"the broker holds {f'{held[0]} to {held[1] - 1}' if held[0] < held[1] else 'none'}"
        super().__init__(f"data loss in {queue}: offsets {lost[0]} to {lost[1] - 1} were to be read, and {reason}")
        self.queue = queue
        self.lost = lost
        self.held = held


class GroupRefusedError(RmqdError):
    """The group cannot run as it is configured, where it is configured to. Trying again does not help: it ends."""


class GroupHeldElsewhereError(GroupRefusedError):
    """The group runs on the other engine, and only one engine may have it. `client_id` is a member of that engine."""

    def __init__(self, group: str, here: str, engine: str, client_id: str, host: str) -> None:
        who = "a member on engine: spark" if engine == "spark" else "a member on engine: local, or of another client,"
        super().__init__(
            f"group {group} is held elsewhere: {who} has it on {host} ({client_id}), and this is {here}. A group runs "
            "on one engine at a time: end it there, and it goes on here where it ended"
        )
        self.group = group
        self.engine = engine
        self.client_id = client_id
        self.host = host


class PopNotSupportedError(GroupRefusedError):
    """The group is configured for POP, and its brokers are of RocketMQ 4, which does not have POP, or are a proxy."""

    def __init__(self, group: str, address: str) -> None:
        super().__init__(
            f"consume_mode: pop needs brokers of RocketMQ 5, and the one at {address} does not know POP (request 400); "
            "upgrade the brokers, or connect to the name server where this is a proxy, which passes no POP on; or set "
            f"consume_mode: concurrently for {group}"
        )


class StaticTopicNotPoppedError(GroupRefusedError):
    """A group that pops subscribes to a static topic: brokers would pop its queues by their own numbers."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic} is a static topic (mqadmin updateStaticTopic), which POP does not read; set consume_mode: "
            "concurrently or orderly, or have it pulled: rmqd groups mode GROUP TOPIC pull"
        )


class LiteTopicsRefusedError(GroupRefusedError):
    """The group is to consume lite topics, and its topic or itself is not set up for them on a broker."""


class UnknownTopicKindError(GroupRefusedError):
    """A broker keeps a topic of a kind that rmqd does not know, as the topic's settings there say."""

    def __init__(self, topic: str, where: str, marks: list[str]) -> None:
        super().__init__(
            f"{topic} on {where} has {' and '.join(marks)}, which this version of rmqd does not know; nothing of the "
            "topic is read, as it could be taken for something else: use a version of rmqd that knows it, or leave the "
            "topic out of the group's subscriptions (mqadmin updateTopic -a changes what may be changed)"
        )
        self.topic = topic


class BrokerTooOldError(RmqdError):
    """The broker is too old for a request: it would accept it and do something else."""
