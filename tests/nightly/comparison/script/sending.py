"""Messages of every kind, and messages that a broker rejects."""

from __future__ import annotations

from tests.nightly.comparison.script.shapes import (
    batch_body,
    by_letters,
    found,
    make_topic,
    pull,
    send,
    send_fields,
)
from tests.nightly.comparison.traffic import Ask, Quiet, Step

SENT, SHUT = "{mark}_sent", "{mark}_shut"
DELAYED, TIMED, TIMED_MS = "{mark}_delayed", "{mark}_timed", "{mark}_timed_ms"
TWO = batch_body((b"one", {"KEYS": "k1", "TAGS": "A", "UNIQ_KEY": "u1"}), (b"two", {"KEYS": "k2"}))
RECALLED, PRIORITIES = "{mark}_recalled", "{mark}_priorities"
BATCHES = "{mark}_batches"
PRIORITY = "_SYS_MSG_PRIORITY_"
RECALL_SECONDS = 8  # delay of a recalled message, enough to recall it on a busy machine too
WAITING = ("queueOffset",)  # the offset in a topic that all delayed messages share
MANY_PROPERTIES = {"KEYS": "key-1 key-2", "TAGS": "TagA", "price": "12.5", "WAIT": "true", "empty": ""}


def _recall(what: str, handle: str, topic: str = RECALLED) -> Ask:
    fields = {"topic": topic, "recallHandle": handle, "producerGroup": "{mark}_producer"}
    return Ask(what=what, code=370, fields=fields)


def _ends(topic: str, when: str) -> list[Ask]:
    fields = {"topic": topic, "queueId": 0}
    return [
        Ask(what=f"the {end} offset {when}", code=code, fields=fields) for end, code in (("first", 31), ("last", 30))
    ]


def _timer(unique_key: str, seconds: int) -> dict[str, str]:
    return {"TIMER_DELAY_SEC": str(seconds), "UNIQ_KEY": unique_key}


SENDING: list[Step] = [
    make_topic(SENT),
    make_topic(SHUT, perm=4),
    make_topic(DELAYED),
    make_topic(TIMED),
    make_topic(TIMED_MS),
    make_topic(RECALLED),
    make_topic(BATCHES, attributes="+queue.type=BatchCQ"),
    make_topic(PRIORITIES, 4, attributes="+message.type=PRIORITY"),
    Ask(what="send by code 10", code=10, fields=send_fields(SENT, MANY_PROPERTIES), body=b"hello", keep="first"),
    send("send by code 310", SENT, b"again", MANY_PROPERTIES, flag=7),
    send("send without properties", SENT, b"plain", properties=""),
    send("send without a unique key", SENT, properties="TAGS\x01TagB\x02"),
    send("send with flags of compression", SENT, b"not really compressed", sysFlag=1 | 0x300),
    send("send with reconsume times", SENT, reconsumeTimes=3),
    send("send with properties without an end", SENT, properties="KEYS\x01cut"),
    send("send with a strange property", SENT, properties="nonsense\x02A\x01b\x02"),
    send("send an empty body", SENT, b""),
    Ask(what="send a batch by code 320", code=320, fields=by_letters(send_fields(SENT, batch="true")), body=TWO),
    Ask(
        what="send a batch by code 310",
        code=310,
        fields=by_letters(send_fields(SENT, batch="true", properties="")),
        body=TWO,
    ),
    Ask(what="send an empty batch", code=320, fields=by_letters(send_fields(SENT, batch="true"))),
    Ask(what="send a broken batch", code=320, fields=by_letters(send_fields(SENT, batch="true")), body=TWO[:-3]),
    Ask(
        what="send a batch to a retry topic",
        code=320,
        fields=by_letters(send_fields("%RETRY%{mark}_batch", batch="true")),
        body=TWO,
    ),
    Ask(what="send one-way", code=310, fields=by_letters(send_fields(SENT)), body=b"one-way", oneway=True),
    Quiet(what="nothing answers a one-way send"),
    pull("pull all that was sent", SENT, until=lambda frame: len(frame["body"] or ()) >= 13),
    # creation of topics by a send, also without success
    send("send to a new topic", "{mark}_made_1"),
    send("send to a new topic with many queues", "{mark}_made_2", defaultTopicQueueNums=100),
    send("send to a new topic with no queues", "{mark}_made_3", defaultTopicQueueNums=0),
    send("send to a new topic after an unknown one", "{mark}_made_4", defaultTopic="{mark}_unknown"),
    send("send to a new topic after one that passes nothing on", "{mark}_made_5", defaultTopic=SENT),
    Ask(what="the topic that a send made", code=351, fields={"topic": "{mark}_made_1"}),
    Ask(what="the topic with many queues", code=351, fields={"topic": "{mark}_made_2"}),
    send("send the half of a transaction", SENT, b"half", {"TRAN_MSG": "true", "PGROUP": "{mark}_producer"}, sysFlag=4),
    # rejected messages
    send("send to a topic that is only read", SHUT),
    send("send to a name with a space", "bad name"),
    send("send to an empty name", ""),
    send("send to a name that is too long", "t" * 128),
    send("send to a system topic", "SCHEDULE_TOPIC_XXXX"),
    send("send to TBW102", "TBW102"),
    send("send to a queue that is not there", SENT, queueId=9),
    send("send a body that is too large", SENT, b"x" * (4 * 1024 * 1024 + 1)),
    send("send properties that are too long", SENT, properties={"long": "x" * 33000}),
    Ask(what="send without a topic", code=310, fields={"a": "{mark}_producer"}),
    Ask(what="send by code 10 without a topic", code=10, fields={"producerGroup": "{mark}_producer"}),
    Ask(what="send to a queue that is no number", code=310, fields=by_letters(send_fields(SENT, queueId="one"))),
    # delays
    send("send with a delay level above all", SENT, b"level 99", {"DELAY": "99"}, aside=WAITING),
    send("send with delay level 0", DELAYED, b"level 0", {"DELAY": "0"}),
    send("send with a delay level that is no number", SENT, b"level x", {"DELAY": "x"}),
    send("send with a timer of a second", TIMED, b"timer 1 s", {"TIMER_DELAY_SEC": "1"}, aside=WAITING),
    send("send with a timer in milliseconds", TIMED_MS, b"timer 1000 ms", {"TIMER_DELAY_MS": "1000"}, aside=WAITING),
    send("send with a timer in the past", DELAYED, b"timer past", {"TIMER_DELIVER_MS": "{now}"}),
    send("send with a timer beyond the longest", DELAYED, b"never", {"TIMER_DELAY_SEC": "259201"}),
    send("send with a timer that is no number", DELAYED, b"timer x", {"TIMER_DELAY_SEC": "x"}),
    # sent last to this topic, so that the delayed message is stored after the others
    send("send with delay level 1", DELAYED, b"level 1", {"DELAY": "1", "KEYS": "d1"}, keep="delayed", aside=WAITING),
    # recalled timers
    Ask(what="prepare no recalls", code=25, body="recallMessageEnable=false\n", silent=True),
    _recall("recall while that is off", "x"),
    Ask(what="prepare recalls", code=25, body="recallMessageEnable=true\n", silent=True),
    send("send what will be recalled", RECALLED, b"gone", _timer("gone", RECALL_SECONDS), keep="timer", aside=WAITING),
    send("send what will not be recalled", RECALLED, b"stays", _timer("stays", RECALL_SECONDS + 1), aside=WAITING),
    _recall("recall", "{timer[recallHandle]}"),
    _recall("recall of another topic", "{timer[recallHandle]}", DELAYED),
    _recall("recall of no topic", "{timer[recallHandle]}", "{mark}_unknown"),
    _recall("recall without a handle", ""),
    _recall("recall by what is no handle", "dGhpcyBpcyBub25l"),
    # batches stored as one record
    *_ends(BATCHES, "before batches"),
    *(
        Ask(
            what=f"send {batch} batch to a topic for batches",
            code=320,
            fields=by_letters(send_fields(BATCHES, properties, batch="true")),
            body=TWO,
        )
        for batch, properties in (("a", {"TAGS": "A"}), ("another", {"UNIQ_KEY": "second"}), ("a keyless", ""))
    ),
    *_ends(BATCHES, "after batches"),
    pull("pull batches", BATCHES, until=lambda frame: len(frame["body"] or ()) >= 4),
    pull("pull from within a batch", BATCHES, until=found, queueOffset=3),
    pull("pull a part of a batch", BATCHES, until=found, queueOffset=0, maxMsgNums=1),
    # priorities
    *(
        send(f"send with priority {priority} {kind}", PRIORITIES, b"first", {PRIORITY: priority, **others})
        for kind, priority, others in (
            ("within the queues", "1", {}),
            ("above the queues", "9", {}),
            ("that is none", "high", {}),
            ("and a sharding key", "1", {"__SHARDINGKEY": "k"}),
        )
    ),
    # retries sent as messages
    send("send a retry", "%RETRY%{mark}_retries", b"retry", {"RETRY_TOPIC": SENT}, reconsumeTimes=1),
    send("send a retry at the limit", "%RETRY%{mark}_retries", b"last", {"RETRY_TOPIC": SENT}, reconsumeTimes=17),
    send("send a retry of a group that cannot be", "%RETRY%bad name", b"retry", reconsumeTimes=1),
    send("send to dead letters", "%DLQ%{mark}_retries", b"dead"),
    pull("pull the retry that was sent", "%RETRY%{mark}_retries", until=found),
    pull("pull dead letters", "%DLQ%{mark}_retries", until=lambda frame: len(frame["body"] or ()) >= 2),
    Ask(what="the retry topic", code=351, fields={"topic": "%RETRY%{mark}_retries"}),
    Ask(what="the topic of dead letters", code=351, fields={"topic": "%DLQ%{mark}_retries"}),
]

# separate topics, because the order of messages that fall due at almost the same time may differ
WAITED_FOR: list[Step] = [
    pull("pull what was delayed", DELAYED, until=lambda frame: len(frame["body"] or ()) >= 3),
    pull("pull what was not recalled", RECALLED, until=found),
    pull("pull what had a timer of a second", TIMED, until=found),
    pull("pull what had a timer in milliseconds", TIMED_MS, until=found),
]
