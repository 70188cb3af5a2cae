"""The pull requests of one queue: the choice of a replica, the filter, and the pauses after failures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

import structlog

from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.connection import OPAQUE_NUMBERS, RemotingConnection
from rmqd.client.remoting.pending import ResponseFuture
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.context import GroupContext
from rmqd.consumer.services import CarriedCommit
from rmqd.errors import BrokerUnknownError, ProtocolError, RmqdError
from rmqd.errors.broker_errors import FlowControlError, GoAwayError, SystemBusyError
from rmqd.runtime.clock import backoff_seconds, with_jitter
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.bodies.route_data import is_logical_broker
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull_headers import PullMessageResponseHeader, PullRequestTemplate
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import PullSysFlag

log = structlog.get_logger(__name__)

T = TypeVar("T")

FAILED_PULL_PAUSE_SECONDS: Final = 1.0  # Java: pullTimeDelayMillsWhenException
FLOW_CONTROL_PAUSE_SECONDS: Final = 0.02  # Java: PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL
EMPTY_RESPONSE_PAUSE_SECONDS: Final = 0.1
MAX_EMPTY_RESPONSE_PAUSE_SECONDS: Final = 1.0
MAX_FLOW_CONTROL_PAUSE_SECONDS: Final = 1.0
MAX_BUSY_PAUSE_SECONDS: Final = 8.0


def error_pause_seconds() -> float:
    """Return the pause after an unspecified failure, in seconds."""
    return with_jitter(FAILED_PULL_PAUSE_SECONDS)


async def repeat_until_answered(context: GroupContext, queue: MessageQueue, ask: Callable[[], Awaitable[T]]) -> T:
    """Call `ask` until it raises no RmqdError, and return the result. The queue cannot start before that."""
    while True:
        try:
            return await ask()
        except RmqdError as error:
            if not error.is_reported:
                _note_failure(context, queue, error)
            context.client.routes.refresh_soon([queue.topic])
            await context.clock.sleep(error_pause_seconds())


def _note_failure(context: GroupContext, queue: MessageQueue, error: RmqdError) -> None:
    """Log that a queue could not start. All queues of a broker that fail within a second share one log line."""
    broker = context.client.routes.endpoint(queue)
    failures = context.start_failures.setdefault(broker, {})
    if not failures:
        context.clock.call_later(FAILED_PULL_PAUSE_SECONDS, _log_failures, context, broker)
    failures[queue] = error


def _log_failures(context: GroupContext, broker: str) -> None:
    failures = context.start_failures.pop(broker)
    queue, error = next(iter(failures.items()))
    log.warning("queue.start_failed", broker=broker, queue=str(queue), queues=len(failures), error=str(error))


class PullBackoff:
    """The pause before one queue's next request. It grows with consecutive refusals or immediate empty responses."""

    def __init__(self) -> None:
        self._refusals = 0  # consecutive refusals
        self._went_away = False  # whether the last response said that the broker is shutting down
        self._unheld = 0  # consecutive empty responses to pulls that the broker did not hold

    def on_success(self) -> None:
        """Called when the broker returned messages, or held the pull until there were some."""
        self._refusals = self._unheld = 0
        self._went_away = False

    def pause_after_empty(self) -> float:
        """Return the pause in seconds after an immediate empty response: a slave lags, or the broker shuts down."""
        self._unheld += 1
        return backoff_seconds(EMPTY_RESPONSE_PAUSE_SECONDS, self._unheld, MAX_EMPTY_RESPONSE_PAUSE_SECONDS)

    def pause_after_error(self, error: RmqdError, *, at_master: bool) -> float:
        """Return the pause after a failure, in seconds. It is random so that a broker's queues do not all pull at once.

        A slave that must not be read (slaveReadEnable: false) responds "busy". That does not lengthen the pause,
        because the master may return at any moment.
        """
        if isinstance(error, GoAwayError):
            is_first, self._went_away = not self._went_away, True
            return 0.0 if is_first else error_pause_seconds()
        if isinstance(error, FlowControlError):
            self._refusals += 1
            return backoff_seconds(FLOW_CONTROL_PAUSE_SECONDS, self._refusals, MAX_FLOW_CONTROL_PAUSE_SECONDS)
        if isinstance(error, SystemBusyError) and at_master:
            self._refusals += 1
            return with_jitter(backoff_seconds(FAILED_PULL_PAUSE_SECONDS, self._refusals, MAX_BUSY_PAUSE_SECONDS))
        return error_pause_seconds()


PULL_TIMEOUT_SECONDS: Final = 30.0  # as in Java; the broker's scan of held pulls may answer 5 s late
OPERATOR_RESET_REMARK: Final = "OFFSET_RESET"
PrepareCommit = Callable[[RemotingConnection], Awaitable[CarriedCommit | None]]

_PULL: Final = int(RequestCode.PULL_MESSAGE)
_GO_AWAY: Final = int(ResponseCode.GO_AWAY)
OFFSET_MOVED_CODE: Final = int(ResponseCode.PULL_OFFSET_MOVED)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)


class PullRepeatedError(RmqdError):
    """The response to the pull in flight is not wanted any more: the pull must be sent again."""


class _Waiting(NamedTuple):
    """A pull that waits for its response."""

    connection: RemotingConnection
    future: ResponseFuture
    offset: int
    commit: CarriedCommit | None

    def give_up(self, on_response: Callable[[int, RemotingCommand], None]) -> None:
        """Pass a late response, with the pull's offset, to `on_response`. The caller must complete the future."""
        later = self.connection.pending.hand_over(self.future, partial(on_response, self.offset))
        if self.commit is not None:
            later.add_done_callback(self.commit.ended)


class PullRequest:
    """Sends the pulls of one queue, one after the other. `broker_id` is the preferred replica for the next pull.

    If that replica is down, the pull is sent to another replica. A pull at a slave carries no commit: offsets are
    stored at the master.
    """

    def __init__(self, client: ClientInstance, group: str, queue: MessageQueue, subscription: SubscriptionData) -> None:
        self.broker_id = 0
        self.address: str | None = None  # address of the last pull
        self.at_master = True  # whether `address` is the broker's master
        self.connection: RemotingConnection | None = None  # connection of the last pull
        self.reset_to: int | None = None
        """The offset of an operator's reset that must still be applied, or None. The pull loop sets it to None."""
        self.on_late_reset: Callable[[int], object] | None = None
        """Set at the release. Called with the offset of a reset in a late response: no other member learns of it."""
        self._client = client
        self._group = group
        self._queue = queue
        self._sub_version = -1
        self._routes_version = -1
        self._replicas: Mapping[int, str] = {}  # addresses of the queue's broker by replica id
        self._waiting: _Waiting | None = None
        self.set_filter(subscription)

    def set_filter(self, subscription: SubscriptionData) -> bool:
        """Use this filter for the next pulls. Return whether it has changed."""
        is_other = self._sub_version != subscription.sub_version
        self._sub_version = subscription.sub_version
        self._subscription = subscription
        self._write_template()
        return is_other

    def _write_template(self) -> None:
        self._credentials = self._client.remoting.security.credentials
        # Heartbeats contain the filters of this client's groups. Pulls for another group must contain the filter.
        self._flags = 0 if self._group in self._client.groups else PullSysFlag.SUBSCRIPTION
        self._template = PullRequestTemplate(
            group=self._group,
            topic=self._queue.topic,
            queue_id=self._queue.queue_id,
            broker_name=self._queue.broker_name,
            expression_type=self._subscription.expression_type,
            subscription=self._subscription.sub_string if self._flags else None,
            extra_fields=self._client.remoting.security.request_fields,
            credentials=self._credentials,
        )

    async def pull(
        self, offset: int, most: int, suspend_ms: int = 0, carry: PrepareCommit | None = None
    ) -> RemotingCommand:
        """Pull and wait for the response, whatever its code. Raises RmqdError, including PullRepeatedError.

        The broker may hold the pull for `suspend_ms`. `carry` returns the commit that the pull must carry, or None. A
        returned commit counts as sent, so its `ended` is always called.
        """
        client = self._client
        if self._routes_version != client.routes.version:
            self._look_up()
        address = self._replicas.get(self.broker_id)
        connection = None if address is None else client.remoting.usable_connection(address)
        if address is None or connection is None:  # this replica is down or not connected; another one may respond
            address = self._address()
            if address is None:
                raise BrokerUnknownError(self._queue.topic, self._queue.broker_name)
        self.address, self.at_master = address, address == self._replicas.get(0)
        if connection is None or not client.heartbeat.is_known_on(connection):
            connection = await client.connection(address)
        self.connection = connection
        commit = None
        if carry is not None:
            commit = await carry(connection)
            if self.reset_to is not None:  # reported meanwhile; then `carry` must not return a commit
                raise PullRepeatedError("an operator has reset the queue")
        if self._credentials is not client.remoting.security.credentials:
            self._write_template()
        opaque, commit_offset, flags = next(OPAQUE_NUMBERS), 0, self._flags
        if suspend_ms:
            flags |= PullSysFlag.SUSPEND
        if commit is not None:
            flags, commit_offset = flags | PullSysFlag.COMMIT_OFFSET, commit.offset
        future = connection.call(
            _PULL,
            opaque,
            self._template.frame(opaque, offset, commit_offset, flags, self._sub_version, suspend_ms, most),
            PULL_TIMEOUT_SECONDS,
        )
        self._waiting = waiting = _Waiting(connection, future, offset, commit)
        try:
            reply = await future
        except asyncio.CancelledError:
            waiting.give_up(self._came_late)
            raise
        finally:
            self._waiting = None
            if commit is not None:
                commit.ended(future)
        if reply.code == _GO_AWAY:
            client.remoting.retire(connection, "the broker is shutting down")
        return reply

    def _look_up(self) -> None:
        """Copy the addresses of the queue's broker from the route table, because each pull needs them."""
        routes = self._client.routes
        self._routes_version = routes.version
        self._replicas = routes.replicas(routes.endpoint(self._queue))

    def repeat_pull(self) -> None:
        """End the pull in flight with PullRepeatedError. Its messages are pulled again."""
        if self._waiting is None or self._waiting.future.done():
            return
        self._waiting.give_up(self._came_late)
        self._waiting.future.set_exception(PullRepeatedError("the pull is sent again"))

    def try_another_replica(self) -> None:
        """Send the pull in flight to another replica if its replica is down."""
        if self._waiting is not None and self.has_other_address():
            self.repeat_pull()

    def has_other_address(self) -> bool:
        """Return whether the next pull would use another address than the last one."""
        return self.address is not None and self._address() not in (None, self.address)

    def _address(self) -> str | None:
        return self._client.replicas.address_to_pull_from(self._client.routes.endpoint(self._queue), self.broker_id)

    def reported_reset(self, asked: int, reply: RemotingCommand) -> int | None:
        """Return the offset of a reset that the response to a pull at `asked` reports, or None. Raises ProtocolError.

        A broker that leads a logical queue drops the remark that identifies a reset. At the queue's end it even
        responds with PULL_NOT_FOUND (`rewriteResponseForStaticTopic` in Java's PullMessageProcessor). But it offers
        another offset for only two reasons: the requested offset is outside the queue's reported range, or there was a
        reset.
        """
        is_unnamed = is_logical_broker(self._queue.broker_name) and reply.code in (OFFSET_MOVED_CODE, _NOT_FOUND)
        if not is_unnamed and not (reply.code == OFFSET_MOVED_CODE and reply.remark == OPERATOR_RESET_REMARK):
            return None
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        if not is_unnamed:
            return header.next_begin_offset
        is_legal = header.min_offset <= asked <= header.max_offset
        is_elsewhere = reply.code == OFFSET_MOVED_CODE or header.next_begin_offset < asked
        return header.next_begin_offset if is_legal and is_elsewhere else None

    def _came_late(self, asked: int, reply: RemotingCommand) -> None:
        """Check a late response for an operator's reset: a broker reports it once, in the next response to a pull."""
        with contextlib.suppress(ProtocolError):
            if (offset := self.reported_reset(asked, reply)) is None:
                return
            if self.on_late_reset is not None:
                self.on_late_reset(offset)
            else:
                self.reset_to = offset
                self.repeat_pull()
