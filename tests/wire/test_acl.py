"""Signatures: the Java client's own for the same request, and those of pulls, which are written another way."""

from __future__ import annotations

import hmac
from base64 import b64encode

from hypothesis import example, given
from hypothesis import strategies as st

from rmqd.wire.acl import Credentials
from rmqd.wire.command import RemotingCommand, decode_command
from rmqd.wire.headers.pull_headers import PullRequestTemplate

LENT = Credentials("ak", "sk12345678", "token%d")
LONG = st.integers(0, 2**63 - 1)


def test_a_signature_is_that_of_the_java_client() -> None:
    """The vector is from RocketMQ 5.5.0's own classes."""
    fields = {
        "topic": "T1",
        "commitOffset": "0",
        "consumerGroup": "g1",
        "expressionType": "TAG",
        "maxMsgNums": "32",
        "queueId": "0",
        "queueOffset": "7",
        "subVersion": "0",
        "suspendTimeoutMillis": "15000",
        "sysFlag": "2",
    }
    signed = Credentials("ak", "sk12345678").signed(fields, b"body")
    assert signed == {**fields, "AccessKey": "ak", "Signature": "IXa6Qwl0rKrW1OnrVl3n2fmVx4k="}
    assert "AccessKey" not in fields


def test_a_token_is_sent_and_signed() -> None:
    """It belongs to keys that were lent for a time."""
    signed = LENT.signed({"n": "1"}, b"")
    assert (signed["SecurityToken"], signed["AccessKey"]) == ("token%d", "ak")
    assert signed["Signature"] != Credentials("ak", "sk12345678").signed({"n": "1"}, b"")["Signature"]


def test_a_request_that_is_signed_again_is_signed_alike() -> None:
    """As one that is sent once more is: the old signature takes no part."""
    once = LENT.signed({"n": "1"}, b"x")
    assert LENT.signed(once, b"x") == once


@given(st.text(), st.text(), st.text(), LONG, LONG, st.integers(1, 1000))
def test_a_pull_is_signed_like_any_request(
    group: str, topic: str, subscription: str, offset: int, version: int, most: int
) -> None:
    """Whatever the names hold and the numbers are."""
    template = PullRequestTemplate(
        group=group, topic=topic, queue_id=3, broker_name="100%d", subscription=subscription, credentials=LENT
    )
    fields = decode_command(template.frame(1, offset, offset // 2, 2, version, 15_000, most)[4:]).ext_fields
    unsigned = {
        name: value for name, value in fields.items() if name not in ("AccessKey", "SecurityToken", "Signature")
    }
    assert unsigned["queueOffset"] == str(offset)
    assert LENT.signed(unsigned, b"") == fields


@given(st.text(), st.binary())
@example("k" * 65, b"")
def test_signatures_are_hmac_sha1(secret: str, content: bytes) -> None:
    """Also by keys longer than SHA-1's block."""
    assert Credentials("ak", secret).sign(content) == b64encode(hmac.digest(secret.encode(), content, "sha1"))


def test_nothing_shows_the_keys() -> None:
    """Neither they themselves nor a request that carries them."""
    request = RemotingCommand(11, ext_fields=LENT.signed({"n": "1"}, b""))
    shown = f"{LENT} {LENT!r} {request!r}"
    assert not any(secret in shown for secret in ("ak", "sk12345678", "token", request.ext_fields["Signature"]))
