"""The targets' checks, and their mutations, which pass the outermost checks of the code."""

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
    """Return a change that inserts or replaces one byte, as a small libFuzzer."""

    def change(data: bytes, most_bytes: int) -> bytes:
        at = chance.randrange(len(data) + 1)
        return (data[:at] + chance.randbytes(1) + data[at + chance.randrange(2) :])[:most_bytes]

    return change


def test_mutations_differ_from_the_input_and_keep_the_size_limit(target: Target) -> None:
    """The empty input is tested too. The same seed must give the same mutation."""
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
def test_most_changed_records_can_be_decoded(kind: CompressionType | None) -> None:
    """Sizes, CRC and compression are corrected. Otherwise every change would fail at the first check."""
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
    """It must be slow in each of three runs."""
    with replaced((targets_of, "SLOW_SECONDS", 0.0)), pytest.raises(Finding, match="ms of processor time"):
        target.timed(corpus(target.name)[-1])


def test_undocumented_errors_of_a_decoder_are_raised() -> None:
    def decode(data: bytes) -> object:
        raise IndexError

    frames = Frames()
    frames.decoders["batch"] = decode
    frames.run(b"record\n\0" + encode_request(0, 1, {}, b"x"))
    with pytest.raises(IndexError):
        frames.run(b"batch\n\0" + encode_request(0, 1, {}, b"x"))


@pytest.mark.parametrize("problem", ["no place at all", "rmqd.yaml:99:1: log: wrong", "rmqd.yaml:1:1: a\nb"])
def test_config_problems_without_a_valid_place_are_findings(configurations: Configurations, problem: str) -> None:
    """A problem is one line with file, line and column."""
    from rmqd.plugins import model_options as runnable

    def load_runnable(*_: object, **__: object) -> object:
        raise ConfigError([problem])

    configurations.run(b"nameserver: 1\n")
    with replaced((runnable, "load_runnable", load_runnable)), pytest.raises(Finding):
        configurations.run(b"nameserver: 1\n")


def test_changes_by_unauthorised_clients_are_findings(requests: Requests) -> None:
    """The endpoint rejects them unless its check is replaced."""
    from rmqd.daemon.http.http_access import AccessPolicy

    requests.run(bytes([HAS_TOKEN]) + PAUSE_REQUEST)
    with (
        replaced((AccessPolicy, "check_change", lambda *_: None)),
        pytest.raises(Finding, match="changed by somebody who may not"),
    ):
        requests.run(bytes([HAS_TOKEN]) + PAUSE_REQUEST)


def test_a_request_without_a_response_is_a_finding(requests: Requests) -> None:
    """An exception of the app is a finding too."""

    async def silent(*_: object) -> None:
        """Send nothing."""

    async def failing(*_: object) -> None:
        raise IndexError("planted")

    with replaced((requests, "_app", silent)), pytest.raises(Finding, match="without starting response"):
        requests.run(b"\0" + PAUSE_REQUEST)
    with replaced((requests, "_app", failing)), pytest.raises(Finding, match="planted"):
        requests.run(b"\0" + PAUSE_REQUEST)
