"""Signatures, compared with the Java client, and signatures of pulls, which have their own code."""

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


def test_a_signature_equals_the_java_clients() -> None:
    """The expected signature was made by the classes of RocketMQ 5.5.0."""
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
    """Temporary keys have a token."""
    signed = LENT.signed({"n": "1"}, b"")
    assert (signed["SecurityToken"], signed["AccessKey"]) == ("token%d", "ak")
    assert signed["Signature"] != Credentials("ak", "sk12345678").signed({"n": "1"}, b"")["Signature"]


def test_signing_a_request_again_gives_the_same_signature() -> None:
    """A request that is sent again is signed again. The old signature is not signed."""
    once = LENT.signed({"n": "1"}, b"x")
    assert LENT.signed(once, b"x") == once


@given(st.text(), st.text(), st.text(), LONG, LONG, st.integers(1, 1000))
def test_a_pull_is_signed_like_any_request(
    group: str, topic: str, subscription: str, offset: int, version: int, most: int
) -> None:
    """With any names and numbers."""
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
    """Also with keys longer than SHA-1's block."""
    assert Credentials("ak", secret).sign(content) == b64encode(hmac.digest(secret.encode(), content, "sha1"))


def test_texts_of_credentials_and_requests_do_not_contain_the_keys() -> None:
    request = RemotingCommand(11, ext_fields=LENT.signed({"n": "1"}, b""))
    shown = f"{LENT} {LENT!r} {request!r}"
    assert not any(secret in shown for secret in ("ak", "sk12345678", "token", request.ext_fields["Signature"]))
