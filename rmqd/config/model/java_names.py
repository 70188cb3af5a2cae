"""Names of the Java client and its Spring starter, with their counterparts in rmqd.

docs/migrating.md explains the same names in more detail, and a test compares the two. For any Java parameter that is
not listed here, rmqd's key is the Java name in snake case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import PydanticCustomError

from rmqd.consumer.allocate import JAVA_STRATEGY_NAMES as STRATEGIES
from rmqd.runtime.value_kinds import Duration, Flag, Integer, Size, SubstitutedText, ValueKind

_KEYS: Final = {
    "nameserver": "namesrvAddr nameServer",
    "nameserver_url": "namesrv.domain",
    "groups": "consumerGroup",
    "subscriptions": "subscription registerTopics registerSubscriptions subExpression selectorExpression selectorType "
    "subExpressionForAssign subscriptionsForHeartbeat subString tagsSet expressionType",
    "handler.plugin": "messageListener registerMessageListener",
    "offset_store.plugin": "offsetStore",
    "hooks": "consumeMessageHook consumeMessageHookList filterMessageHook filterMessageHookList",
    "handler.concurrency": "consumeThreadMax consumeThreadMin consumeThreadNumber",
    "consume_mode": "MessageListenerConcurrently MessageListenerOrderly consumeOrderly",
    "consume_concurrently_max_span": "consumeMaxSpan",
    "allocate_strategy": "allocateMessageQueueStrategy",
    "allocate_queues": "messageQueueList",
    "machine_rooms": "consumeridcs",
    "suspend_current_queue_time": "suspendCurrentQueueTimeMillis",
    "shutdown_timeout": "awaitTerminationMillisWhenShutdown",
    "persist_consumer_offset_interval": "autoCommitIntervalMillis",
    "enable_trace": "enableMsgTrace traceDispatcher",
    "trace_topic": "customizedTraceTopic",
    "state_dir": "localOffsetStoreDir",
    "client.access_key": "rpcHook",
    "client.instance_name": "client.name",
    "client.namespace": "namespace",
    "client.poll_name_server_interval": "topicMetadataCheckIntervalMillis",
    "client.max_frame_size": "frameMaxLength",
    "client.tls.enabled": "useTLS tlsEnable",
    "client.tls.verify": "tls.client.authServer",
    "client.tls.ca_file": "tls.client.trustCertPath",
    "client.tls.cert_file": "tls.client.certPath",
    "client.tls.key_file": "tls.client.keyPath",
    "client.tls.key_password": "tls.client.keyPassword",
}
_REASONS: Final = {
    "write nameserver, client and groups at the top level": "rocketmq",
    "always 262144; lower pull_batch_size for large messages": "pullBatchSizeInBytes",
    "always false; subscriptions travel with heartbeats": "postSubscriptionWhenPull",
    "it does nothing in Java either": "adjustThreadPoolNumsThreshold",
    "always true; with consume_mode: pop brokers divide the queues": "clientRebalance",
    "use the log event rebalance.changed, or the metric rmqd_assigned_queues": "messageQueueListener",
    "the handler sets batch.ack_index": "ackIndex",
    "handlers read batch.message_queue": "messageQueue",
    "always the time at which rmqd read the subscription": "subVersion",
    "RocketMQ removed class filters; use tags or sql": "classFilterMode filterClassSource",
    "always Java's delays; a handler sets one with Retry(delay_level=N)": "popDelayLevel",
    "messages come from the replica that the broker suggests": "connectBrokerByUser defaultBrokerId",
    "the address of the interface that leads to the name server": "clientIP",
    "always LOCAL; it only changes the trace": "accessChannel",
    "connections are direct; use a proxy of the operating system, or a tunnel": "socksProxyConfig",
    "always 1s, plus or minus a quarter": "pullTimeDelayMillsWhenException",
    "always 3s; 5s for offsets and send-backs, 30s for pulls": "mqClientApiTimeout consumerTimeoutMillisWhenSuspend "
    "consumerPullTimeoutMillis",
    "responses are handled on the event loop, without threads": "clientCallbackExecutorThreads pullThreadNums",
    "always false": "useHeartbeatV2 enableStreamRequestType sendLatencyEnable",
    "part of sendLatencyEnable, which is always false": "startDetectorEnable detectTimeout detectInterval",
    "each broker has its own heartbeat, without threads": "enableConcurrentHeartbeat concurrentHeartbeatThreadPoolSize",
    "always true; a new connection gets a heartbeat at once": "enableHeartbeatChannelEventListener",
    "always true": "decodeReadBody decodeDecompressBody",
    "always PYTHON": "language",
    "routes are requested topic by topic": "maxPageSizeInGetMetadata",
    "brokers hold an empty pull for 15s, as they do for Java's push consumer": "brokerSuspendMaxTimeMillis",
    "use pull_threshold_for_queue and pull_threshold_for_topic": "pullThresholdForAll",
    "handlers do not poll": "pollTimeoutMillis",
    "always true; allocate_strategy: by_config fixes the queues": "enableRebalance",
    "always Java's default": "lockInterval lockMaxLiveTime pullMaxIdleTime waitInterval minInterval "
    "unlockDelayTimeMills",
    "workers serve the queues in turn, batch by batch": "maxTimeConsumeContinuously",
    "a setting of brokers": "longPollingEnable shortPollingTimeMills",
}
_CONSTANTS: Final = {
    "clustering": "CLUSTERING",
    "broadcasting": "BROADCASTING",
    "concurrently": "CONCURRENTLY MessageListenerConcurrently",
    "orderly": "ORDERLY MessageListenerOrderly",
    "pop": "POP",
    "last_offset": "CONSUME_FROM_LAST_OFFSET CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST "
    "CONSUME_FROM_MIN_OFFSET CONSUME_FROM_MAX_OFFSET",  # Java treats the other, obsolete values like the first value
    "first_offset": "CONSUME_FROM_FIRST_OFFSET",
    "timestamp": "CONSUME_FROM_TIMESTAMP",
    "averagely": "AllocateMessageQueueAveragely",
    "averagely_by_circle": "AllocateMessageQueueAveragelyByCircle",
    "consistent_hash": "AllocateMessageQueueConsistentHash",
    "by_config": "AllocateMessageQueueByConfig",
    "by_machine_room": "AllocateMessageQueueByMachineRoom",
    "machine_room_nearby": "AllocateMachineRoomNearby",
    "acked": "CONSUME_SUCCESS SUCCESS COMMIT",
    "retried": "RECONSUME_LATER SUSPEND_CURRENT_QUEUE_A_MOMENT ROLLBACK",
    "broker": "RemoteBrokerOffsetStore",
    "broker, with message_model: broadcasting": "LocalFileOffsetStore",
    "{sql: condition}": "SQL92",
    "a tag expression": "TAG",
}
KEYS, REASONS, CONSTANTS = (
    {name: meaning for meaning, names in table.items() for name in names.split()}
    for table in (_KEYS, _REASONS, _CONSTANTS)
)
CONSTANTS.update({java: name for name, java in STRATEGIES.items()})
"""By Java's name: the key in rmqd.yaml, the reason why there is no key, and rmqd's word for a constant."""


def find_entry(name: str, names: Mapping[str, str]) -> str | None:
    """Return the entry for a Java parameter in any spelling (useTLS, use-tls, rocketmq.consumer.use-tls), or None."""
    spellings = normalized(name), normalized(name.rpartition(".")[2])
    return next((entry for wanted in spellings for java, entry in names.items() if normalized(java) == wanted), None)


def snake_case(name: str) -> str:
    """Return the last part of a parameter's name in snake case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition(".")[2]).replace("-", "_").lower()


def word_of_constant(value: object) -> str | None:
    """Return rmqd's word for a Java constant, written with or without its class; None for other values."""
    return CONSTANTS.get(value.rpartition(".")[2]) if isinstance(value, str) else None


def value_from_java(kind: object, name: str, value: Any) -> Any:
    """Convert the value of the Java parameter `name` to rmqd's notation. Returns None if `kind` does not accept it."""
    unit = {Duration: "m" if name.lower().endswith("timeout") else "ms", Size: "MiB"}.get(type(kind), "")
    for one in (word_of_constant(value) or value, f"{value}{unit}"):
        try:
            checked = (
                kind.parse(SubstitutedText(one) if isinstance(one, str) else one)
                if isinstance(kind, ValueKind)
                else one
            )
        except PydanticCustomError:
            continue
        return checked if isinstance(kind, Flag | Integer) else one
    return None


def normalized(name: str) -> str:
    """Return a parameter's name without its case and separators, which differ between notations."""
    return re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("rocketmq."))
