"""The few requests of the remoting protocol that run and check a cluster, each on a separate connection."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import re
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from typing import Any

from tests.rocketmq.errors import ClusterError

_opaque = itertools.count(1)

SEND_MESSAGE = 10
QUERY_CONSUMER_OFFSET = 14
UPDATE_CONSUMER_OFFSET = 15
UPDATE_AND_CREATE_TOPIC = 17
UPDATE_BROKER_CONFIG = 25
GET_BROKER_RUNTIME_INFO = 28
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
GET_CONSUMER_LIST_BY_GROUP = 38
UNREGISTER_BROKER = 104
GET_ROUTE_INFO_BY_TOPIC = 105
GET_BROKER_CLUSTER_INFO = 106
UPDATE_AND_CREATE_SUBSCRIPTION_GROUP = 200
SET_MESSAGE_REQUEST_MODE = 401

CONTROLLER_GET_SYNC_STATE_DATA = 1006

MASTER_ID = "0"
SUCCESS = 0
QUERY_NOT_FOUND = 22
# stored, but not flushed or replicated in time: good enough to call a broker ready
STORED = (0, 10, 11, 12)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials that a cluster requires of its clients: the super user's keys, a TLS connection, or both."""

    access_key: str = ""
    secret_key: str = ""
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: its code, header fields, body and remark."""

    code: int
    fields: dict[str, str]
    body: bytes
    remark: str | None = None


def call(
    address: str,
    code: int,
    fields: dict[str, object] | None = None,
    *,
    body: bytes = b"",
    credentials: Credentials | None = None,
    timeout_seconds: float = 3.0,
    accepted: tuple[int, ...] = (SUCCESS,),
) -> Answer:
    """Send one request and return its response. Raises OSError, or ClusterError on a code that is not accepted."""
    with connect(address, credentials, timeout_seconds) as link:
        return exchange(link, code, fields, body=body, credentials=credentials, accepted=accepted)


def connect(address: str, credentials: Credentials | None, timeout_seconds: float) -> socket.socket:
    """Open a connection to a server, with TLS if the cluster requires it. Raises OSError."""
    host, port = address.rsplit(":", 1)
    link = socket.create_connection((host, int(port)), timeout=timeout_seconds)
    if credentials is None or credentials.tls is None:
        return link
    try:
        return credentials.tls.wrap_socket(link, server_hostname=host)
    except BaseException:
        link.close()
        raise


def exchange(
    link: socket.socket,
    code: int,
    fields: dict[str, object] | None = None,
    *,
    body: bytes = b"",
    credentials: Credentials | None = None,
    accepted: tuple[int, ...] = (SUCCESS,),
) -> Answer:
    """Send one request on an open connection and return its response. Raises as `call` does."""
    link.sendall(request(code, fields or {}, body, credentials))
    total, marked = struct.unpack(">II", _take(link, 8))
    length = marked & 0xFFFFFF  # the top byte names the header's serialisation: JSON, as asked
    head = json.loads(_take(link, length))
    answer = Answer(head["code"], head.get("extFields") or {}, _take(link, total - 4 - length), head.get("remark"))
    if answer.code not in accepted:
        remark = (head.get("remark") or "").splitlines()
        raise ClusterError(f"request {code} was answered with {answer.code}: {remark[0] if remark else 'no remark'}")
    return answer


def request(code: int, fields: dict[str, object], body: bytes = b"", credentials: Credentials | None = None) -> bytes:
    """A request's frame."""
    texts = {key: str(value) for key, value in fields.items()}
    if credentials and credentials.access_key:
        texts["AccessKey"] = credentials.access_key
        signed = "".join(texts[key] for key in sorted(texts)).encode() + body
        digest = hmac.new(credentials.secret_key.encode(), signed, hashlib.sha1).digest()
        texts["Signature"] = base64.b64encode(digest).decode()
    head: dict[str, Any] = {"code": code, "language": "PYTHON", "version": 0, "opaque": next(_opaque), "flag": 0}
    head |= {"extFields": texts, "serializeTypeCurrentRPC": "JSON"}
    data = json.dumps(head).encode()
    return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body


def loose_json(body: bytes) -> Any:
    """Parse JSON by fastjson, which writes numeric keys without quotes."""
    return json.loads(re.sub(r"([{,])\s*(\d+)\s*:", r'\1"\2":', body.decode()))


def broker_table(namesrv: str, credentials: Credentials | None = None) -> dict[str, dict[str, str]]:
    """Broker name to broker id to address, as the name server knows them."""
    table = loose_json(call(namesrv, GET_BROKER_CLUSTER_INFO, credentials=credentials).body).get("brokerAddrTable")
    return {name: entry.get("brokerAddrs", {}) for name, entry in (table or {}).items()}


def write_queue_counts(namesrv: str, topic: str, credentials: Credentials | None = None) -> list[int]:
    """The write queues of a topic, a number per broker. Raises ClusterError if the name server has no route."""
    answer = call(namesrv, GET_ROUTE_INFO_BY_TOPIC, {"topic": topic}, credentials=credentials)
    return [queue["writeQueueNums"] for queue in loose_json(answer.body)["queueDatas"]]


def store_probe(address: str, credentials: Credentials | None = None) -> None:
    """Store one message in the topic that every broker has for its own benchmark."""
    fields: dict[str, object] = {
        "producerGroup": "rmqd_probe",
        "topic": "BenchmarkTest",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": int(time.time() * 1000),
        "flag": 0,
        "properties": "",
        "reconsumeTimes": 0,
        "unitMode": "false",
        "batch": "false",
        "maxReconsumeTimes": 0,
    }
    call(address, SEND_MESSAGE, fields, body=b"probe", credentials=credentials, accepted=STORED)


def _take(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed before the answer was whole")
        data += part
    return bytes(data)
