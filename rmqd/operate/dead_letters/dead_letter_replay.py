"""Replays dead letters of a group. Each letter is sent once, no matter when and why the process ends.

If a response is missing, the broker may or may not have executed the request. After kill -9 all responses are missing.
So letters are sent in windows:

1. Before the first request, the marks file records the letters of the window, and the current maximum offsets of the
   queues that may receive their copies. The file is on disk before anything is sent.
2. After the last response, the letters are settled and the window is removed from the file in one write.

If a run finds a window in the file, or gets an error, it does not simply send the letters again. The replay sends the
broker a query, waits until the broker must have completed earlier requests, and reads the messages that the queues have
received since. In the retry topic, each copy has RMQD_REPLAY_ID, the letter's id. A copy that the broker made
(send-back) is in the schedule topic. It is identified by the message's id, its original offset id, and its reconsume
times, which are one higher than the letter's. A letter with a copy was sent, and is settled. A letter without a copy
was not sent and will not be, so it stays unsettled and may be sent. The copy itself is the proof, so it does not matter
whether the process, the response or the file was lost.

The same check finds bounced copies. If a group holds queue locks, a broker reports success for a send to its retry
topic, but stores the message as a dead letter. So each window of retry-topic sends ends with this check. Copies in the
DLQ topic are marked as settled, because they are not separate letters. Their letters are then sent by send-back.

If the file is missing (another machine, a lost state_dir), the ids of sent letters are read from the retry topic, from
the store time of the oldest chosen letter. The file's folder is locked, so two processes with one state_dir never
replay a group at the same time. Before anything is sent, the command shows a `DeadLetterPlan` and the group's members.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Set
from dataclasses import dataclass, field
from typing import Final

from rmqd.client.brokers import Brokers
from rmqd.client.group_reader import GroupReader, MemberReport
from rmqd.client.instance import ClientInstance
from rmqd.consumer.cache.flow_control import RateLimit
from rmqd.errors import InvalidMessageError, RemotingError, RmqdError, RouteNotFoundError
from rmqd.operate.dead_letters.dead_letter import (
    CopyMethod,
    DeadLetterFilter,
    DlqMarks,
    DlqMessage,
    DlqQueueKey,
    ReplayWindow,
)
from rmqd.operate.dead_letters.dead_letter_listing import DlqQueue, dlq_queues, unsettled_messages
from rmqd.operate.dead_letters.dead_letter_sending import CopySender, commit_settled_offset
from rmqd.operate.queries.group_queries import is_known
from rmqd.wire.topics import dlq_topic


@dataclass(slots=True)
class DeadLetterPlan:
    """The counts of all unsettled dead letters (`left`), and of the letters chosen for a replay or purge (`chosen`).

    `refused` counts chosen letters that cannot be replayed, by reason. `first_stored_ms` is the oldest store time.
    """

    queues: list[DlqQueue]
    left: int = 0
    chosen: int = 0
    first_stored_ms: int = 0
    reasons: Counter[str | None] = field(default_factory=Counter)
    topics: Counter[str | None] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


async def check_group_exists(brokers: Brokers, group: str) -> None:
    """Raise RmqdError if no broker has the group's DLQ topic, and no broker knows the group."""
    try:
        await brokers.client.routes.lookup(dlq_topic(group))
    except RouteNotFoundError:
        if not await is_known(brokers, group):
            raise RmqdError(
                f"no broker knows group {group}; run `rmqd dlq list` to see the groups with dead letters"
            ) from None


async def make_plan(
    brokers: Brokers, group: str, marks: DlqMarks, choice: DeadLetterFilter
) -> tuple[DeadLetterPlan, dict[str, RmqdError]]:
    """Read all unsettled dead letters, and count the letters that match `choice`.

    Also returns the errors of failed queries, by broker name. Raises RmqdError.
    """
    queues, errors = await dlq_queues(brokers, group, marks)
    plan = DeadLetterPlan(queues)
    await asyncio.gather(*(_count(brokers, queue, choice, plan) for queue in queues))
    return plan, errors


async def members_that_get_copies(brokers: Brokers, group: str) -> tuple[list[MemberReport], dict[str, RmqdError]]:
    """Return the group's members, which would receive the copies, and the errors of failed queries."""
    reader = GroupReader(brokers, group)
    known = await reader.connections()
    return [*(await reader.members(known.found)).values()], dict(known.errors)


async def _count(brokers: Brokers, queue: DlqQueue, choice: DeadLetterFilter, plan: DeadLetterPlan) -> None:
    async for letters in unsettled_messages(brokers.client.remoting, queue):
        plan.left += len(letters)
        for letter in filter(choice.matches, letters):
            plan.chosen += 1
            plan.reasons[letter.kind] += 1
            plan.topics[letter.origin_topic] += 1
            if letter.refusal:
                plan.refused[letter.refusal] += 1
            came = letter.message.store_timestamp
            plan.first_stored_ms = min(plan.first_stored_ms or came, came)


WINDOW_LETTERS: Final = 64
IN_FLIGHT_SECONDS: Final = 3.0
"""How long a broker may still execute an earlier request after it has answered a query. It refuses a send that waited
for 200 ms (waitTimeMillsInSendQueue). The rest is for slow disks."""
MAX_TRIES: Final = 3
RETRY_PAUSE_SECONDS: Final = 1.0
MAX_CHECKS: Final = 100
POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class ReplayFailure:
    """A dead letter that could not be replayed, and stays unsettled."""

    msg_id: str
    broker: str
    queue: int
    offset: int
    error: str


@dataclass(slots=True)
class ReplayOutcome:
    """The result of a replay. An earlier run had already sent the `found` letters. `untried` letters were not sent.

    `ways` is how letters were sent, by broker name. An entry in `errors` stopped the replay on that broker's queue.
    """

    sent: int = 0
    found: int = 0
    untried: int = 0
    failed: list[ReplayFailure] = field(default_factory=list)
    ways: dict[str, CopyMethod] = field(default_factory=dict)
    errors: dict[str, RmqdError] = field(default_factory=dict)


class DeadLetterReplay:
    """One replay of the dead letters of a plan.

    `on_progress` is called after each send attempt with the number of letters sent so far, now or by an earlier run.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        marks: DlqMarks,
        choice: DeadLetterFilter,
        *,
        per_second: float,
        orderly: bool,
        on_progress: Callable[[int], None],
    ) -> None:
        self.outcome = ReplayOutcome()
        self._client = client
        self._group = group
        self._marks = marks
        self._choice = choice
        self._first_way: CopyMethod = "send_back" if orderly else "retry_topic"
        self._rate = RateLimit(per_second, client.clock)
        self._on_progress = on_progress
        self._queues: dict[DlqQueueKey, DlqQueue] = {}
        self._known: dict[str, set[str]] = {}  # broker name -> replay ids in its retry topic before this run
        self._proven: set[tuple[str, CopyMethod]] = set()  # (broker name, way that has stored a copy on it)

    async def run(self, plan: DeadLetterPlan) -> ReplayOutcome:
        """Replay the chosen dead letters, queue by queue. If a queue fails, its error is recorded in the outcome."""
        self._queues = {queue.place: queue for queue in plan.queues}
        for queue in plan.queues:
            try:
                await self._replay(queue, plan.first_stored_ms)
            except RmqdError as error:
                self.outcome.errors[queue.queue.broker_name] = error
        done = self.outcome.sent + self.outcome.found + len(self.outcome.failed)
        self.outcome.untried = max(0, plan.chosen - done)
        return self.outcome

    async def _replay(self, queue: DlqQueue, since_ms: int) -> None:
        broker = queue.queue.broker_name
        sender = CopySender(self._client, self._group, broker, queue.address)
        self.outcome.ways.setdefault(broker, self._first_way)
        if self._marks.is_new and broker not in self._known:
            self._known[broker] = await sender.replay_ids_since(await sender.offsets_at_time(since_ms))
        if (window := self._marks.windows.get(broker)) is not None:
            self.outcome.found += len(await self._close(sender, window, broker, set()))
        letters: list[DlqMessage] = []
        async for letter in self._to_send(queue):
            letters.append(letter)
            if len(letters) >= self._room(broker):
                await self._send_all(queue, sender, letters)
                letters = []
        if letters:
            await self._send_all(queue, sender, letters)
        await commit_settled_offset(self._client, queue)

    async def _to_send(self, queue: DlqQueue) -> AsyncIterator[DlqMessage]:
        """Yield the chosen dead letters to send. Settles letters sent before, and records letters it cannot send."""
        known = self._known.get(queue.queue.broker_name, set())
        async for letters in unsettled_messages(self._client.remoting, queue):
            for letter in filter(self._choice.matches, letters):
                if letter.replay_id in known:
                    self._settle(queue.place, letter.offset, letter.replay_id)
                    self.outcome.found += 1
                elif letter.refusal:
                    self._fail(letter, letter.refusal)
                else:
                    yield letter

    def _room(self, broker: str) -> int:
        """Return the size of the next window: 1 until the broker has stored a copy that was sent to the retry topic."""
        way = self.outcome.ways[broker]
        is_tried = way == "send_back" or (broker, way) in self._proven
        return self._rate.batch_limit(WINDOW_LETTERS) if is_tried else 1

    async def _send_all(self, queue: DlqQueue, sender: CopySender, letters: list[DlqMessage]) -> None:
        """Send dead letters with retries, and record failures. Raises RemotingError if no request got a response."""
        broker, tried = queue.queue.broker_name, 0
        left, errors = letters, dict[int, Exception]()
        while left and tried < MAX_TRIES:
            way = self.outcome.ways[broker]
            if tried:
                await self._client.clock.sleep(RETRY_PAUSE_SECONDS * tried)
            errors = await self._send(queue, sender, left)
            left = [one for one in left if one.offset in errors]
            tried += self.outcome.ways[broker] == way  # if the way changed, the copies bounced: not a failed attempt
            self._on_progress(self.outcome.sent + self.outcome.found)
        unanswered = [error for error in errors.values() if isinstance(error, RemotingError)]
        if len(unanswered) == len(letters):
            raise unanswered[0]
        for one in left:
            self._fail(one, str(errors[one.offset]))

    async def _send(self, queue: DlqQueue, sender: CopySender, letters: list[DlqMessage]) -> dict[int, Exception]:
        """Send dead letters as one window. Returns the errors of letters that were not sent, by the letter's offset."""
        broker = queue.queue.broker_name
        way = self.outcome.ways[broker]
        if way == "send_back" and (broker, way) not in self._proven:
            await sender.check_send_back()
        keys = {one.offset: one.sent_back_key if way == "send_back" else one.replay_id for one in letters}
        window = ReplayWindow(queue.queue.queue_id, way, keys, await sender.max_offsets(way))
        self._marks.windows[broker] = window
        self._marks.save()
        errors = await self._requests(sender, letters, way)
        gone = await self._close(sender, window, broker, keys.keys() - errors.keys())
        self.outcome.sent += len(gone)
        if gone:
            self._proven.add((broker, way))
        held = RmqdError("the broker dead-lettered the replayed message again, because the group holds queue locks")
        return {offset: errors.get(offset, held) for offset in keys.keys() - gone}

    async def _requests(self, sender: CopySender, letters: list[DlqMessage], way: CopyMethod) -> dict[int, Exception]:
        errors: dict[int, Exception] = {}

        async def send(letter: DlqMessage) -> None:
            await self._rate.wait()
            self._rate.charge(1)
            try:
                await sender.send(letter, way)
            except (RmqdError, InvalidMessageError) as error:
                errors[letter.offset] = error

        if way == "send_back":  # sequential, so that an orderly group gets them in order
            for letter in letters:
                await send(letter)
        else:
            await asyncio.gather(*map(send, letters))
        return errors

    async def _close(self, sender: CopySender, window: ReplayWindow, broker: str, answered: Set[int]) -> set[int]:
        """Settle the sent letters of a window, and remove the window. Returns the offsets of these letters.

        The broker reported success for the `answered` letters. It may have stored copies of other letters too, because
        it also returns an error if its disk or slave was slow.
        """
        if answered < window.keys.keys():
            await sender.max_offsets(window.way)  # once the broker responds, it has received all earlier requests
            await self._client.clock.sleep(IN_FLIGHT_SECONDS)
        gone, bounced = set(answered), dict[int, DlqMessage]()
        if window.way == "retry_topic":
            gone, bounced = await self._look(sender, window, answered)
        elif answered < window.keys.keys():
            gone |= await sender.find_sent_back_copies(window)
        if bounced:
            self.outcome.ways[broker] = "send_back"
        for copy in bounced.values():
            self._settle((broker, copy.message.stored_queue_id), copy.offset)
        for offset in gone:
            self._settle((broker, window.queue_id), offset, window.keys[offset] if window.way == "retry_topic" else "")
        del self._marks.windows[broker]
        self._marks.save()
        return gone

    async def _look(
        self, sender: CopySender, window: ReplayWindow, answered: Set[int]
    ) -> tuple[set[int], dict[int, DlqMessage]]:
        """Return the offsets of letters with copies in the retry topic, and bounced copies by their letter's offset.

        A copy can be read only a moment after the broker's response. If a copy does not appear within five seconds, the
        response counts.
        """
        for _ in range(MAX_CHECKS):
            gone, bounced = await sender.find_stored_copies(window)
            if answered <= gone | bounced.keys():
                break
            await self._client.clock.sleep(POLL_SECONDS)
        return gone | (answered - bounced.keys()), bounced

    def _settle(self, place: DlqQueueKey, offset: int, replay_id: str = "") -> None:
        self._marks.settle(place, offset, replay_id)
        if (queue := self._queues.get(place)) is not None:
            queue.settled.add(offset)

    def _fail(self, letter: DlqMessage, error: str) -> None:
        message = letter.message
        place = message.broker_name, message.stored_queue_id, letter.offset
        self.outcome.failed.append(ReplayFailure(message.msg_id, *place, error))
