"""Pull replies with one flipped bit each, against a model of the queue: no message is skipped."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product

from rmqd.client.remoting.pending import TrafficCounters
from rmqd.consumer.pull.response_validation import ResponseValidation
from rmqd.errors import ProtocolError
from rmqd.wire.headers.pull_headers import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message

QUEUE = MessageQueue("t1", "a", 0)
BATCH, SCAN = 16, 60  # messages of a reply, and offsets that a broker scans for it
SEEDS = range(12)
Flip = Callable[[random.Random, dict[str, str], bytes], tuple[dict[str, str], bytes]]


@dataclass(frozen=True)
class Model:
    """A queue of `size` offsets: the broker holds the offsets in `records`, and its filter passes those in `wanted`."""

    size: int
    records: Mapping[int, bytes]
    wanted: frozenset[int]

    def answer(self, asked: int) -> tuple[bool, dict[str, str], bytes]:
        """Whether messages were found, the reply's ext fields and its body."""
        found: list[bytes] = []
        at = asked
        while at < self.size and at - asked < SCAN and len(found) < BATCH:
            if at in self.wanted and at in self.records:
                found.append(self.records[at])
            at += 1
        fields = PullMessageResponseHeader(at, 0, self.size).ext_fields()
        return bool(found), fields, b"".join(found)


def a_queue(chance: random.Random, *, filtered: bool, gaps: bool) -> Model:
    size = chance.randrange(50, 400)
    held = [at for at in range(size) if not gaps or chance.random() < 0.9]
    message = StoredMessage(topic=QUEUE.topic, queue_id=0, body=b"")
    records = {
        at: encode_message(replace(message, queue_offset=at, body=b"%d " % at * chance.randrange(1, 9))) for at in held
    }
    share = chance.choice([0.02, 0.3, 0.9]) if filtered else 1.0
    return Model(size, records, frozenset(at for at in range(size) if chance.random() < share or not filtered))


def in_header(chance: random.Random, fields: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    """Flip one bit of one offset, either in the binary number or in its digits."""
    name = chance.choice(["nextBeginOffset", "minOffset", "maxOffset"])
    if chance.random() < 0.5:
        return fields | {name: str(int(fields[name]) ^ 1 << chance.randrange(63))}, body
    digits = bytearray(fields[name].encode())
    digits[chance.randrange(len(digits))] ^= 1 << chance.randrange(7)
    return fields | {name: digits.decode("latin-1")}, body


def in_offsets(chance: random.Random, fields: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    """Flip one bit of a record's queue offset."""
    starts = [message._start for message in frame_messages(body, QUEUE).messages]
    return fields, flipped(body, chance.choice(starts) + 20 + chance.randrange(8), chance) if starts else body


def anywhere(chance: random.Random, fields: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    """Flip one bit of the body."""
    return fields, flipped(body, chance.randrange(len(body)), chance) if body else body


def flipped(body: bytes, at: int, chance: random.Random) -> bytes:
    changed = bytearray(body)
    changed[at] ^= 1 << chance.randrange(8)
    return bytes(changed)


def consume(model: Model, chance: random.Random, flip: Flip, *, filtered: bool) -> dict[int, bytes]:
    """Pull the queue to its end, with half of the replies damaged. Return the bodies by the offset believed."""
    validation = ResponseValidation(QUEUE, TrafficCounters())
    validation.has_no_filter = not filtered
    handled: dict[int, bytes] = {}
    bodies = set[bytes]()
    offset = pulls = 0
    while offset < model.size:
        pulls += 1
        assert pulls < 50 * model.size, f"it does not get past {offset}"
        asked = offset
        is_found, fields, body = model.answer(asked)
        if chance.random() < 0.5:
            fields, body = flip(chance, fields, body)
        try:
            header = PullMessageResponseHeader.from_ext_fields(fields)
            if not is_found:
                offset = validation.validate_empty(asked, header)
                validation.on_progress(offset)
            else:
                block = frame_messages(body, QUEUE)
                believed = validation.validate_found(block, asked, header, passes_over=True)
                assert not believed.bad, "nothing is stored corrupt"
                offset = believed.next_offset
                for message in block.messages:
                    handled[message.queue_offset] = message.body
                    bodies.add(message.body)
                if offset > asked:
                    validation.on_progress(offset)
                elif believed.contradiction is not None:
                    validation.made_no_progress(believed.contradiction)
        except ProtocolError:
            continue
        assert offset >= asked
        for at in range(asked, min(offset, model.size)):
            if at in model.wanted and at in model.records:
                assert body_of(model, at) in bodies, f"{at} is skipped by a reply to a pull at {asked}"
    assert offset == model.size
    return handled


def body_of(model: Model, at: int) -> bytes:
    """The body stored at an offset."""
    return frame_messages(model.records[at], QUEUE).messages[0].body


def test_an_unfiltered_queue_is_handled_completely() -> None:
    """Every message under its own offset, and the queue's end is not passed."""
    for flip, gaps, seed in product((in_header, in_offsets, anywhere), (False, True), SEEDS):
        chance = random.Random(f"{seed} {flip.__name__} {gaps}")
        model = a_queue(chance, filtered=False, gaps=gaps)
        handled = consume(model, chance, flip, filtered=False)
        assert handled == {at: body_of(model, at) for at in model.records}, (flip, gaps, seed)


def test_no_wanted_message_of_a_filtered_queue_is_skipped() -> None:
    """The next offset of a reply is validated, though most offsets are missing in it."""
    for flip, seed in product((in_header, anywhere), SEEDS):
        chance = random.Random(f"{seed} {flip.__name__} filtered")
        model = a_queue(chance, filtered=True, gaps=False)
        handled = consume(model, chance, flip, filtered=True)
        assert set(handled.values()) == {body_of(model, at) for at in model.wanted}, (flip, seed)
