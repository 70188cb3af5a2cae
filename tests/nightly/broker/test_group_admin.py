"""Group configurations: administrators query and change them, as recorded from RocketMQ 5.5.0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.wire.bodies.config_bodies import (
    READ_FORBIDDEN_BIT,
    GroupForbidden,
    SetMessageRequestModeRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from tests.broker.peer import Peer, connected

UPDATE, ALL, DELETE, UPDATE_LIST, GET, FORBIDDEN, SET_MODE, MODES = 200, 201, 207, 225, 352, 353, 401, 402
SYSTEM = {
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_OWNER",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_PULL",
    "CID_RMQ_SYS_TRANS",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "TOOLS_CONSUMER",
}
ILLEGAL = {
    "a b": "The specified group: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
    "a\n": "The specified group: a\n, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
    " ": "The specified group is blank.",
    "g" * 121: f"The specified group: {'g' * 121}, is longer than group max length: 120",
}


async def asked(peer: Peer, group: str) -> SubscriptionGroupConfig | None:
    reply = await peer.call(GET, {"group": group})
    if reply.code:
        assert (reply.code, reply.remark) == (26, "No group in this broker")
        return None
    return SubscriptionGroupConfig.from_json(reply.body)


def body(**values: object) -> bytes:
    return json.dumps(values).encode()


async def test_a_query_creates_the_group(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """Not for an illegal name. If auto-creation is off, only for RocketMQ's own groups."""
    assert await asked(peer, "new") == SubscriptionGroupConfig(group_name="new")
    for name in ILLEGAL:
        assert await asked(peer, name) is None
    broker = embedded.broker
    broker.change_settings(broker.settings.changed({"autoCreateSubscriptionGroup": "false"}))

    assert await asked(peer, "another") is None
    assert await asked(peer, "new") is not None
    assert await asked(peer, "CID_RMQ_SYS_another") is not None
    assert await asked(peer, "SCHEDULE_CONSUMER") is None
    assert set(broker.groups.all()) == SYSTEM | {"new", "CID_RMQ_SYS_another"}


async def test_a_group_is_updated(peer: Peer) -> None:
    assert (await peer.call(UPDATE, {}, body(groupName="g", retryMaxTimes=3, retryQueueNums=2))).code == 0
    assert await asked(peer, "g") == SubscriptionGroupConfig(group_name="g", retry_max_times=3, retry_queue_nums=2)

    assert (await peer.call(UPDATE, {}, body(groupName="g", consumeEnable=False))).code == 0
    assert await asked(peer, "g") == SubscriptionGroupConfig(group_name="g", consume_enable=False)
    assert (await peer.call(UPDATE)).code == 0, "an empty request does nothing, as in RocketMQ"


@pytest.mark.parametrize(("name", "remark"), ILLEGAL.items(), ids=["space", "line", "blank", "long"])
async def test_an_illegal_name_is_rejected(embedded: EmbeddedRocketMQ, peer: Peer, name: str, remark: str) -> None:
    """If one name of a list is illegal, none is created."""
    one = await peer.call(UPDATE, {}, body(groupName=name))
    many = await peer.call(UPDATE_LIST, {}, body(groupConfigList=[{"groupName": "good"}, {"groupName": name}]))

    assert (one.code, one.remark) == (many.code, many.remark) == (29, remark)
    assert set(embedded.broker.groups.all()) == SYSTEM


async def test_a_list_of_groups_is_created(peer: Peer) -> None:
    reply = await peer.call(UPDATE_LIST, {}, body(groupConfigList=[{"groupName": "g"}, {"groupName": "h"}]))

    assert reply.code == 0
    assert {"g", "h"} < set(SubscriptionGroupWrapper.from_json((await peer.call(ALL)).body).subscription_group_table)


async def test_attributes_are_changed_one_by_one(peer: Peer) -> None:
    """The request adds, changes or removes single attributes."""

    async def change(**attributes: str) -> tuple[int, str | None]:
        reply = await peer.call(UPDATE, {}, body(groupName="g", attributes=attributes))
        return reply.code, reply.remark

    async def attributes() -> dict[str, str]:
        config = await asked(peer, "g")
        assert config is not None
        return config.attributes

    assert await change(**{"+priority.factor": "10", "+lite.bind.topic": "T"}) == (0, None)
    assert await change() == (0, None)
    assert await attributes() == {"priority.factor": "10", "lite.bind.topic": "T"}
    assert await change(**{"-lite.bind.topic": "", "+priority.factor": "20"}) == (0, None)
    assert await attributes() == {"priority.factor": "20"}
    assert await change(x="1") == (1, "kv string format wrong.")
    assert await change(**{"+x": "1"}) == (1, "unsupported key: x")
    assert await attributes() == {"priority.factor": "20"}


async def test_groups_are_listed_in_pages(peer: Peer) -> None:
    """Sorted by name. If the table's version has changed, the page starts at the beginning."""
    for name in ("g", "h", "i"):
        await asked(peer, name)
    everything = SubscriptionGroupWrapper.from_json((await peer.call(ALL)).body)
    names = sorted(everything.subscription_group_table)
    version = json.dumps(everything.data_version.to_dict())
    assert set(names) == SYSTEM | {"g", "h", "i"}

    async def page(begin: int, most: int, version: str = "") -> list[str]:
        fields = {"groupSeq": str(begin), "maxGroupNum": str(most), "dataVersion": version}
        reply = await peer.call(ALL, fields)
        assert reply.ext_fields == {"totalGroupNum": "11"}
        return sorted(SubscriptionGroupWrapper.from_json(reply.body).subscription_group_table)

    assert await page(0, 2) == await page(2, 2) == names[:2]
    assert await page(2, 2, version) == names[2:4]
    assert await page(10, 5, version) == names[10:]
    assert await page(100, 2, version) == []
    await peer.call(UPDATE, {}, body(groupName="g", consumeEnable=False))
    assert await page(2, 2, version) == names[:2]
    changed = SubscriptionGroupWrapper.from_json((await peer.call(ALL)).body)
    assert changed.data_version.counter == everything.data_version.counter + 1


@pytest.mark.parametrize(("clean", "left"), [(None, {0: 1}), ("false", {0: 1}), ("true", {})])
async def test_a_group_is_deleted(
    embedded: EmbeddedRocketMQ, peer: Peer, clean: str | None, left: dict[int, int]
) -> None:
    """Offsets are deleted only on request. Deleting an unknown group succeeds."""
    broker = embedded.broker
    await asked(peer, "g")
    broker.offsets.commit("g", "T", 0, 1)

    reply = await peer.call(DELETE, {"groupName": "g"} | ({} if clean is None else {"cleanOffset": clean}))

    assert reply.code == 0
    assert broker.groups.get("g") is None
    assert broker.offsets.queues("g", "T") == left
    assert (await peer.call(DELETE, {"groupName": "never"})).code == 0


async def test_a_group_is_forbidden_to_read_a_topic(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """Until it is allowed again, which applies to all topics, or until the group is deleted."""

    async def readable(topic: str = "T", **change: str) -> bool:
        reply = await peer.call(FORBIDDEN, {"group": "g", "topic": topic} | change)
        forbidden = GroupForbidden.from_json(reply.body)
        assert (forbidden.group, forbidden.topic) == ("g", topic)
        return forbidden.readable

    await asked(peer, "g")
    assert await readable()
    assert not await readable(readable="false")
    assert not await readable()
    groups = SubscriptionGroupWrapper.from_json((await peer.call(ALL)).body)
    assert groups.forbidden_table == {"g": {"T": READ_FORBIDDEN_BIT}}
    assert not await readable("T2", readable="false")
    assert await readable(readable="true")
    assert await readable("T2")
    await readable(readable="false")
    await peer.call(DELETE, {"groupName": "g"})
    assert await readable()


async def test_the_request_mode_is_stored(peer: Peer) -> None:
    assert (await peer.call(MODES)).body == b'{"messageRequestModeMap":{}}'

    async def set_mode(topic: str, group: str) -> tuple[int, str | None]:
        reply = await peer.call(SET_MODE, {}, SetMessageRequestModeRequestBody(topic, group, "POP", 2).to_json())
        return reply.code, reply.remark

    assert await set_mode("%RETRY%g", "g") == (16, "retry topic is not allowed to set mode")
    assert await set_mode("never", "g") == (17, "topic[never] not exist")
    assert await set_mode("T", "a b") == (26, "subscription group does not exist")
    assert await set_mode("T", "g") == (0, None)
    mode = {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2, "topic": "T"}
    assert json.loads((await peer.call(MODES)).body) == {"messageRequestModeMap": {"T": {"g": mode}}}


async def test_groups_survive_a_restart(tmp_path: Path) -> None:
    """Request modes and forbidden topics too."""
    options = EmbeddedOptions(topics={"T": 1}, data_dir=tmp_path)
    async with embedded_rocketmq(options) as embedded, connected(embedded.broker.address) as peer:
        await peer.call(UPDATE, {}, body(groupName="g", retryMaxTimes=3, attributes={"+priority.factor": "10"}))
        await peer.call(SET_MODE, {}, SetMessageRequestModeRequestBody("T", "g", "POP", 2).to_json())
        await peer.call(FORBIDDEN, {"group": "g", "topic": "T", "readable": "false"})
        await asked(peer, "left")
        await peer.call(DELETE, {"groupName": "left"})
    async with embedded_rocketmq(options) as embedded:
        groups = embedded.broker.groups
        expected = SubscriptionGroupConfig(group_name="g", retry_max_times=3, attributes={"priority.factor": "10"})
        assert groups.get("g") == expected
        assert groups.get("left") is None
        assert groups.request_modes() == [SetMessageRequestModeRequestBody("T", "g", "POP", 2)]
        assert groups.is_reading_forbidden("g", "T")
