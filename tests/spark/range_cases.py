"""Scripted replicas of a broker, and the expected outcome of a range: one table for the plan and for both pullers.

The plan is tested without sockets (`test_range_plan`), the pullers with sockets (`test_replicas`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rmqd.codes import ResponseCode
from rmqd.errors import DataLossError, ProtocolError, RemotingError
from rmqd.errors.broker_errors import BrokerError, NoPermissionError
from rmqd.spark.session.queue_range import PullSettings, QueueRange, Replica
from rmqd.spark.session.spark_access import ClientAccess
from rmqd.wire.bodies.heartbeat_data import tag_subscription
from rmqd.wire.headers.pull_headers import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.properties import TAGS
from tests.client.peer import Reply

TOPIC, BROKER = "orders", "broker-a"
COUNT, ON_SLAVE, KEPT_FROM = 12, 4, 8
EVERYTHING = tuple(range(COUNT))
MASTER, SLAVE = 0, 1
MORE_REFUSALS = 8  # more than the empty responses that make a master believed
AWAY = Reply(-1)
"""Stands for a replica that takes no connection."""

Answer = Callable[[int, int], Reply]
"""What a replica answers to a pull of so many messages from an offset on."""


def having(
    end: int, refusal: ResponseCode = ResponseCode.PULL_RETRY_IMMEDIATELY, moved_to: int | None = None
) -> Answer:
    """A replica with the messages before `end`. Later offsets are refused, with a next begin offset."""

    def answer(offset: int, most: int) -> Reply:
        if offset >= end:
            following = offset if moved_to is None else moved_to
            return Reply(refusal, "", PullMessageResponseHeader(following, 0, end).ext_fields())
        return found(offset, min(offset + most, end), end)

    return answer


def found(offset: int, following: int, end: int) -> Reply:
    """A response with messages."""
    messages = (
        encode_message(StoredMessage(topic=TOPIC, queue_id=0, body=b"x", properties={TAGS: "a"}, queue_offset=number))
        for number in range(offset, following)
    )
    fields = PullMessageResponseHeader(following, 0, end).ext_fields()
    return Reply(ResponseCode.SUCCESS, "", fields, b"".join(messages))


def saying(code: ResponseCode) -> Answer:
    """A replica that always responds with `code`."""
    return lambda offset, most: Reply(code, "as it is scripted")


def away(offset: int, most: int) -> Reply:
    """A replica without a process."""
    return AWAY


def expired(code: ResponseCode) -> Answer:
    """A master whose messages from ON_SLAVE to before KEPT_FROM have expired, which it reports by `code`."""

    def answer(offset: int, most: int) -> Reply:
        if ON_SLAVE <= offset < KEPT_FROM:
            return Reply(code, "", PullMessageResponseHeader(KEPT_FROM, KEPT_FROM, COUNT).ext_fields())
        end = ON_SLAVE if offset < ON_SLAVE else COUNT
        return found(offset, min(offset + most, end), COUNT)

    return answer


def slow_index(empty_answers: int) -> Answer:
    """A master whose index is late: its first `empty_answers` responses at ON_SLAVE are empty."""
    left = empty_answers

    def answer(offset: int, most: int) -> Reply:
        nonlocal left
        if offset == ON_SLAVE and left:
            left -= 1
            return Reply(ResponseCode.PULL_NOT_FOUND, "", PullMessageResponseHeader(offset, 0, COUNT).ext_fields())
        return having(COUNT)(offset, most)

    return answer


def damaged(damage: Callable[[bytes], bytes], times: int) -> Answer:
    """A replica with all messages. Its first `times` responses from ON_SLAVE on are damaged, or all of them by -1."""
    left = times

    def answer(offset: int, most: int) -> Reply:
        nonlocal left
        reply = having(COUNT)(offset, most)
        if offset < ON_SLAVE or not left:
            return reply
        left -= 1
        return replace(reply, body=damage(reply.body))

    return answer


@dataclass(frozen=True, kw_only=True)
class Case:
    """`master` and the first of `routes` apply until the slave has refused MORE_REFUSALS times.

    Then the master has all messages (unless `master_stays`), and the second of `routes` applies.
    """

    name: str
    slave: Callable[[], Answer] = lambda: away
    master: Callable[[], Answer] = lambda: having(COUNT)
    master_stays: bool = False
    routes: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = ((MASTER, SLAVE), (MASTER, SLAVE))
    """The replicas that the topic's route names; None where there is no such topic."""
    known: tuple[tuple[int, int], ...] = ((MASTER, MASTER), (SLAVE, SLAVE))
    """What the range knows at its start: broker ids, and which process has the address."""
    tags: str = "*"
    patience: float = 60.0
    offsets: tuple[int, ...] = EVERYTHING
    """What is delivered where a loss does not fail the range."""
    error: type[Exception] | None = None
    """What the range fails by in any case."""

    @property
    def lost(self) -> int:
        """How many messages are lost."""
        return COUNT - len(self.offsets) if self.error is None else 0

    def __str__(self) -> str:
        return self.name


@dataclass
class Scripted:
    """One run of a case."""

    case: Case
    refusals: int = 0
    _answers: dict[int, Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._answers = {MASTER: self.case.master(), SLAVE: self.case.slave()}

    @property
    def _is_late(self) -> bool:
        return self.refusals >= MORE_REFUSALS

    @property
    def route(self) -> tuple[int, ...] | None:
        """The replicas that the route names now."""
        return self.case.routes[self._is_late]

    def pull(self, process: int, offset: int, most: int) -> Reply:
        """The current response of a process."""
        if process == MASTER and self._is_late and not self.case.master_stays:
            return having(COUNT)(offset, most)
        reply = self._answers[process](offset, most)
        if process == SLAVE and reply.code != ResponseCode.SUCCESS and reply is not AWAY:
            self.refusals += 1
        return reply


def queue_range(case: Case, addresses: tuple[str, str], access: ClientAccess, *, loss_fails: bool) -> QueueRange:
    """The range of all twelve messages, with the replicas that the case knows at its start."""
    return QueueRange(
        queue=MessageQueue(TOPIC, BROKER, 0),
        start=0,
        end=COUNT,
        access=access,
        replicas=tuple(Replica(broker_id, addresses[process]) for broker_id, process in case.known),
        subscription=tag_subscription("", case.tags, 0),
        pull=PullSettings(batch_size=2, patience_seconds=case.patience),
        fail_on_data_loss=loss_fails,
    )


def _behind(code: str, moved_to: int | None = None) -> Callable[[], Answer]:
    return lambda: having(ON_SLAVE, ResponseCode[code], moved_to)


def _expired(code: str) -> Callable[[], Answer]:
    return lambda: expired(ResponseCode[code])


def _saying(code: ResponseCode) -> Callable[[], Answer]:
    return lambda: saying(code)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "are cut short": lambda body: body[:-1],
    "have a wrong body size": lambda body: body[:87] + bytes((body[87] ^ 2,)) + body[88:],
    "have a wrong magic": lambda body: body[:4] + b"none" + body[8:],
}


def _damaged(how: str, times: int = -1) -> Callable[[], Answer]:
    return lambda: damaged(DAMAGES[how], times)


REFUSALS = ("PULL_OFFSET_MOVED", "PULL_RETRY_IMMEDIATELY", "PULL_NOT_FOUND")
FIRST_FOUR = tuple(range(ON_SLAVE))

CASES = [
    *(
        Case(
            name=f"the master is away, a slave says {code} ({tags})",
            master=lambda: away,
            slave=_behind(code),
            tags=tags,
        )
        for code in REFUSALS
        for tags in ("*", "a || b")
    ),
    *(
        Case(
            name=f"the master refuses, a slave says that the offset moved to {moved_to} ({tags})",
            master=_saying(ResponseCode.SYSTEM_BUSY),
            slave=_behind("PULL_OFFSET_MOVED", moved_to),
            tags=tags,
        )
        for moved_to in (0, COUNT)
        for tags in ("*", "a || b")
    ),
    *(
        Case(name=f"the master is away, a slave refuses by {code}", master=lambda: away, slave=_saying(code))
        for code in (ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR)
    ),
    Case(
        name="the route names the slave alone at first",
        slave=_behind("PULL_NOT_FOUND"),
        routes=((SLAVE,), (MASTER, SLAVE)),
        known=((SLAVE, SLAVE),),
    ),
    Case(
        name="nothing is known, and the route names the slave alone at first",
        slave=_behind("PULL_OFFSET_MOVED"),
        routes=((SLAVE,), (MASTER, SLAVE)),
        known=(),
    ),
    *(
        Case(name=f"a former master says {code}", slave=_behind(code), known=((MASTER, SLAVE),))
        for code in ("PULL_OFFSET_MOVED", "PULL_RETRY_IMMEDIATELY")
    ),
    Case(name="the master's index is late", master=lambda: slow_index(4)),
    *(
        Case(
            name=f"the master ends early and says {code} ({tags})",
            master=_behind(code),
            slave=_behind(code),
            tags=tags,
            master_stays=True,
            offsets=FIRST_FOUR,
        )
        for code in REFUSALS
        for tags in ("*", "a || b")
    ),
    *(Case(name=f"the master's answers {how} at first", master=_damaged(how, 3)) for how in DAMAGES),
    *(
        Case(
            name=f"the master's answers {how} for good, a slave's do not",
            master=_damaged(how),
            slave=lambda: having(COUNT),
        )
        for how in DAMAGES
    ),
    *(
        Case(
            name=f"the answers of the only replica {how} for good",
            master=_damaged(how),
            routes=((MASTER,), (MASTER,)),
            known=((MASTER, MASTER),),
            patience=0.3,
            error=ProtocolError,
        )
        for how in DAMAGES
    ),
    *(
        Case(
            name=f"the master's retention passed a part, by {code}",
            master=_expired(code),
            offsets=(*FIRST_FOUR, *range(KEPT_FROM, COUNT)),
        )
        for code in REFUSALS
    ),
    Case(name="the master lets nobody read", master=_saying(ResponseCode.NO_PERMISSION), error=NoPermissionError),
    Case(
        name="the slave is alone, and behind",
        slave=_behind("PULL_OFFSET_MOVED"),
        routes=((SLAVE,), (SLAVE,)),
        known=((SLAVE, SLAVE),),
        patience=0.3,
        error=RemotingError,
    ),
    Case(name="all are away", master=lambda: away, patience=0.3, error=RemotingError),
    Case(
        name="all are busy",
        master=_saying(ResponseCode.SYSTEM_BUSY),
        slave=_saying(ResponseCode.SYSTEM_BUSY),
        master_stays=True,
        patience=0.3,
        error=BrokerError,
    ),
    Case(name="the broker left the route", master=lambda: away, routes=((), ()), patience=0.3, offsets=()),
    Case(name="the topic is gone", master=lambda: away, routes=(None, None), patience=0.3, offsets=()),
    Case(
        name="the broker has the topic no more",
        master=_saying(ResponseCode.TOPIC_NOT_EXIST),
        routes=((), ()),
        patience=0.3,
        offsets=(),
    ),
]

RUNS = [(case, loss_fails) for case in CASES for loss_fails in (False, True)]


def wanted(case: Case, *, loss_fails: bool) -> type[Exception] | tuple[int, ...]:
    """The expected error, or the offsets that are delivered."""
    if case.lost and loss_fails:
        return DataLossError
    return case.offsets if case.error is None else case.error
