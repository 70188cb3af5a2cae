"""The targets see what is wrong, and change inputs so that they come through the outermost checks."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from rmqd.errors import ConfigError, ProtocolError
from rmqd.wire.command import FrameDecoder, decode_command, encode_request
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.properties import CompressionType
from tests.nightly.fuzzing import target as targets_of
from tests.nightly.fuzzing.configurations import Configurations
from tests.nightly.fuzzing.frame_changes import changed_stream
from tests.nightly.fuzzing.frames import QUEUE, Frames
from tests.nightly.fuzzing.requests import HAS_TOKEN, Requests
from tests.nightly.fuzzing.target import Change, Finding, Target, corpus, replaced
from tests.nightly.fuzzing.targets import TARGETS, load
from tests.wire.compressing import compress, compressed_flag

PAUSE_REQUEST = b"POST /api/v1/groups/mailer/pause HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Each of them."""
    made = load(request.param)
    yield made
    made.close()


@pytest.fixture
def requests() -> Iterator[Requests]:
    made = Requests()
    yield made
    made.close()


@pytest.fixture
def configurations() -> Iterator[Configurations]:
    made = Configurations()
    yield made
    made.close()


def changing(chance: Random) -> Change:
    """Puts a byte in, or in the place of another: what libFuzzer does, in small."""

    def change(data: bytes, most_bytes: int) -> bytes:
        at = chance.randrange(len(data) + 1)
        return (data[:at] + chance.randbytes(1) + data[at + chance.randrange(2) :])[:most_bytes]

    return change


def test_changes_stay_within_the_limit_and_are_changes(target: Target) -> None:
    """For every kept input, and for none at all; and the same chance makes the same change."""
    chance = Random(1)
    changed = 0
    inputs = [b"", *corpus(target.name)[:150]]
    for data in inputs:
        seed = chance.randrange(2**32)
        new, again = (target.mutated(data, target.most_bytes, Random(seed), changing(Random(seed))) for _ in range(2))
        assert new == again
        assert len(new) <= target.most_bytes
        changed += new != data
    assert changed > 0.9 * len(inputs)


@pytest.mark.parametrize("kind", [None, *CompressionType])
def test_most_changed_records_still_are_records(kind: CompressionType | None) -> None:
    """Sizes, CRC and compression are put right: else every change would end at the first check."""
    body = compress(b"hello" * 20, kind) if kind else b"hello"
    flag = compressed_flag(kind) if kind else 0
    record = encode_message(StoredMessage(topic="T", body=body, sys_flag=flag, properties={"TAGS": "a"}))
    stream = encode_request(0, 1, {}, record * 2)
    chance = Random(2)
    good = bodies = 0
    for _ in range(400):
        new = changed_stream(stream, 4096, chance, changing(chance))
        try:
            for payload in FrameDecoder().feed(new):
                command = decode_command(payload)
                messages = decode_messages(command.payload, QUEUE, command.body_start).messages
                good += bool(messages)
                bodies += any(message.body not in (b"hello", b"hello" * 20) for message in messages)
        except ProtocolError:
            pass
    assert good > 200
    assert bodies > 20


def test_a_slow_input_is_a_finding(target: Target) -> None:
    """If it is slow each time."""
    with replaced((targets_of, "SLOW_SECONDS", 0.0)), pytest.raises(Finding, match="ms of processor time"):
        target.timed(corpus(target.name)[-1])


def test_frames_that_raise_what_is_not_documented_are_told() -> None:
    """Whatever it is that decodes."""

    def decode(data: bytes) -> object:
        raise IndexError

    frames = Frames()
    frames.decoders["batch"] = decode
    frames.run(b"record\n\0" + encode_request(0, 1, {}, b"x"))
    with pytest.raises(IndexError):
        frames.run(b"batch\n\0" + encode_request(0, 1, {}, b"x"))


@pytest.mark.parametrize("problem", ["no place at all", "rmqd.yaml:99:1: log: wrong", "rmqd.yaml:1:1: a\nb"])
def test_problems_that_name_no_place_are_told(configurations: Configurations, problem: str) -> None:
    """File, line and column, on one line."""
    from rmqd.plugins import model_options as runnable

    def load_runnable(*_: object, **__: object) -> object:
        raise ConfigError([problem])

    configurations.run(b"nameserver: 1\n")
    with replaced((runnable, "load_runnable", load_runnable)), pytest.raises(Finding):
        configurations.run(b"nameserver: 1\n")


def test_changes_by_strangers_are_told(requests: Requests) -> None:
    """If the endpoint let them through."""
    from rmqd.daemon.http.http_access import AccessPolicy

    requests.run(bytes([HAS_TOKEN]) + PAUSE_REQUEST)
    with (
        replaced((AccessPolicy, "check_change", lambda *_: None)),
        pytest.raises(Finding, match="changed by somebody who may not"),
    ):
        requests.run(bytes([HAS_TOKEN]) + PAUSE_REQUEST)


def test_a_request_that_nobody_answers_is_told(requests: Requests) -> None:
    """And one at which the app fails."""

    async def silent(*_: object) -> None:
        """Send nothing."""

    async def failing(*_: object) -> None:
        raise IndexError("planted")

    with replaced((requests, "_app", silent)), pytest.raises(Finding, match="without starting response"):
        requests.run(b"\0" + PAUSE_REQUEST)
    with replaced((requests, "_app", failing)), pytest.raises(Finding, match="planted"):
        requests.run(b"\0" + PAUSE_REQUEST)
