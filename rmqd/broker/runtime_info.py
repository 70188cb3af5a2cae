"""The response to GET_BROKER_RUNTIME_INFO: figures of a broker, with the names that mqadmin and monitoring read.

All of RocketMQ's names are present. Figures of thread pool queues and of the page cache are constant, because this
broker has neither: it answers a request in the turn of the loop that reads it.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from rmqd.broker.broker_stats import MINUTE, StatsItem

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController

_VERSION: Final = "V5_5_0"
_QUEUES: Final = {"send": 10000, "pull": 100000, "litePull": 100000, "query": 20000, "ack": 100000}  # Java's capacities
_NO_TIME: Final = -1
_CONSTANT: Final = {
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "100000",
    "brokerActive": "true",
    "brokerVersionDesc": _VERSION,
    "dispatchBehindBytes": "0",
    "dispatchMaxBuffer": "0",
    "pageCacheLockTimeMills": "0",
    "putMessageDistributeTime": "null",
    "putMessageEntireTimeMax": "0",
    "putLatency99": "0.00",
    "putLatency999": "0.00",
    "getMessageEntireTimeMax": "0",
    "remainHowManyDataToFlush": "0 B",
    "remainTransientStoreBufferNumbs": "2147483647",
    "startAcceptSendRequestTimeStamp": "0",
    "timerCongestNum": "0",
    "timerDequeueTps": "0.0",
    "timerEnqueueTps": "0.0",
    "timerOffsetBehind": "0",
    "timerReadBehind": "0",
}


def runtime_info(broker: BrokerController) -> dict[str, str]:
    """Return the runtime info, by name."""
    stats, store = broker.stats, broker.store
    puts, gets, oldest = stats.puts, stats.gets, store.oldest
    disk = shutil.disk_usage("/")
    ratio = f"{disk.used / disk.total:.2f}"
    table = {
        **_CONSTANT,
        "bootTimestamp": str(int(broker.booted_at * 1000)),
        "runtime": _duration(broker.clock.wall() - broker.booted_at),
        "commitLogDirCapacity": f"Total : {_bytes(disk.total)}, Free : {_bytes(disk.free)}.",
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogMaxOffset": str(store.end),
        "commitLogMinOffset": str(0 if oldest is None else oldest.commit_log_offset),
        "earliestMessageTimeStamp": str(_NO_TIME if oldest is None else oldest.store_timestamp),
        "putMessageTimesTotal": str(puts.messages),
        "putMessageFailedTimes": "0",
        "putMessageSizeTotal": str(puts.size_bytes),
        "putMessageAverageSize": str(puts.size_bytes / puts.messages if puts.messages else 0.0),
        "putTps": _rates(stats.now(), puts),
        "getFoundTps": _rates(stats.now(), gets),
        "getMissTps": _rates(stats.now(), stats.get_misses),
        "getTotalTps": _rates(stats.now(), gets, stats.get_misses),
        "getTransferredTps": _rates(stats.now(), gets),
        "msgPutTotalYesterdayMorning": str(stats.puts_at_midnights[0]),
        "msgPutTotalTodayMorning": str(stats.puts_at_midnights[1]),
        "msgPutTotalTodayNow": str(puts.messages),
        "msgGetTotalYesterdayMorning": str(stats.gets_at_midnights[0]),
        "msgGetTotalTodayMorning": str(stats.gets_at_midnights[1]),
        "msgGetTotalTodayNow": str(gets.messages),
    }
    for name, capacity in _QUEUES.items():
        table[f"{name}ThreadPoolQueueSize"] = "0"
        table[f"{name}ThreadPoolQueueCapacity"] = str(capacity)
        table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    for level, (offset, end) in broker.schedule.progress().items():
        table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
    return dict(sorted(table.items()))


def _rates(now: float, *items: StatsItem) -> str:
    """Return the rates over ten seconds, a minute and ten minutes."""
    return " ".join(
        str(sum(item.nums(now, seconds).per_second for item in items)) for seconds in (10.0, MINUTE, 10 * MINUTE)
    )


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"[ {days} days, {hour} hours, {minute} minutes, {second} seconds ]"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
