"""GO_AWAY of a broker in an orderly shutdown: it did not process the request, and wants another connection."""

from __future__ import annotations

import asyncio

from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Peer, Reply
from tests.waiting import eventually

ASK = RequestCode.GET_MAX_OFFSET
OTHER = RequestCode.GET_MIN_OFFSET
GO_AWAY = Reply(ResponseCode.GO_AWAY, "please go away")


def refuse(peer: Peer, times: int) -> None:
    """Answer the next `times` requests with GO_AWAY."""
    answers = [GO_AWAY] * times
    peer.on(ASK, lambda _: answers.pop() if answers else Reply(ext_fields={"offset": "7"}))


async def test_the_request_is_sent_again_on_another_connection(remoting: RemotingClient, peer: Peer) -> None:
    refuse(peer, 1)
    reply = await remoting.invoke(peer.address, ASK, {})
    assert reply.ext_fields == {"offset": "7"}
    assert peer.connections == 2
    assert not remoting.is_down(peer.address)


async def test_the_request_is_sent_again_only_once(remoting: RemotingClient, peer: Peer) -> None:
    refuse(peer, 3)
    reply = await remoting.invoke(peer.address, ASK, {})
    assert reply.code == ResponseCode.GO_AWAY
    assert len(peer.got(ASK)) == 2


async def test_a_request_in_progress_gets_its_answer(remoting: RemotingClient, peer: Peer) -> None:
    """The old connection is closed only afterwards."""
    answer = asyncio.Event()

    async def slow(_: RemotingCommand) -> Reply:
        await answer.wait()
        return Reply(ext_fields={"offset": "3"})

    peer.on(OTHER, slow)
    refuse(peer, 1)
    under_way = asyncio.create_task(remoting.invoke(peer.address, OTHER, {}))
    await peer.received(OTHER)
    left = remoting.connected(peer.address)
    assert left is not None
    await remoting.invoke(peer.address, ASK, {})
    assert left.is_open
    answer.set()
    assert (await under_way).ext_fields == {"offset": "3"}
    await eventually(lambda: not left.is_open, "the old connection is closed")
    assert remoting.connected(peer.address) is not None
