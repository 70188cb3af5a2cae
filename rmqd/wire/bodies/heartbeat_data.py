"""HeartbeatData: the heartbeat that reports a client's groups and their subscriptions to brokers.

A subscription contains hashes of its tags. Brokers compare these hashes with the hash of a message's tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from struct import unpack
from typing import Annotated, Final

from rmqd.errors import InvalidNameError
from rmqd.wire import fields
from rmqd.wire.bodies.json_body import Body, WireOptions
from rmqd.wire.fields import WireName

EXPRESSION_TAG: Final = "TAG"
EXPRESSION_SQL92: Final = "SQL92"
SUBSCRIPTION_ALL: Final = "*"


class ConsumeType(StrEnum):
    """How a group receives messages. Push consumers report PASSIVELY, even if they pop."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """How members share messages: each member gets all messages, a part of them, or only its lite topics."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"
    LITE_SELECTIVE = "LITE_SELECTIVE"


class ConsumeFromWhere(StrEnum):
    """The start offset of a group without a stored offset: the queue's end, its first message, or a time."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Body, called="a subscription"):
    """A group's subscription to one topic. Brokers use the subscription with the highest `sub_version` (Unix ms)."""

    topic: str
    sub_string: str = SUBSCRIPTION_ALL
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = EXPRESSION_TAG
    class_filter_mode: bool = False

    @property
    def matches_all_messages(self) -> bool:
        return self.expression_type == EXPRESSION_TAG and not self.tags_set


class ConsumerData(Body, called="a consumer group"):
    """One consumer group in a heartbeat. Its subscriptions replace the subscriptions stored at the broker."""

    group_name: str
    subscription_data_set: tuple[SubscriptionData, ...]
    consume_type: str = ConsumeType.PASSIVELY
    message_model: str = MessageModel.CLUSTERING
    consume_from_where: str = ConsumeFromWhere.LAST_OFFSET
    unit_mode: bool = False


def _read_producers(value: object, what: str) -> tuple[str, ...]:
    return tuple(
        fields.required_text(fields.as_object(item, "a producer"), "groupName") for item in fields.as_list(value, what)
    )


def _write_producers(groups: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"groupName": group} for group in groups]


class HeartbeatData(Body):
    """The body of HEART_BEAT (34): a client's id, names of its producer groups, and its consumer groups."""

    client_id: Annotated[str, WireName("clientID")]
    consumer_data_set: tuple[ConsumerData, ...] = ()
    producer_groups: Annotated[
        tuple[str, ...], WireName("producerDataSet"), WireOptions(read=_read_producers, write=_write_producers)
    ] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class CheckClientRequestBody(Body):
    """The body of CHECK_CLIENT_CONFIG (46): asks a broker to check a subscription with an SQL expression."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


_TYPOGRAPHIC: Final = "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a\u00b4`"
_QUOTES: Final = f"'\"{_TYPOGRAPHIC}"
_BRACKETS: Final = {")": "(", "]": "["}
_JOINS: Final = r"|\u00a6\u2016\u2225\uff5c&\uff06,\uff0c\u3001;\uff1b"
_BETWEEN_TAGS: Final = re.compile(rf"\s+(?:or|and|[/+-])\s+|[{_JOINS}\s\u200b\ufeff]+", re.IGNORECASE)
_WILDCARD: Final = re.compile(r"\^?([\w-]*)(?:\.?\*+|(?<![0-9])%)\$?")  # 50% is a tag
_TYPOGRAPHIC_QUOTE: Final = re.compile(rf"'[^']*'|[{_TYPOGRAPHIC}]")
_TAGS_IN_SQL: Final = re.compile(r"'[^']*'|(?<![\w$])tags?(?![\w$])", re.IGNORECASE)
_TAG_TEST: Final = re.compile(r"'[^']*'|\bTAGS\s*=\s*(?:'([^']*\|\|[^']*)'|(?!NULL\b)([A-Za-z_]\w*))")
_BOTH_TAGS: Final = re.compile(r"'[^']*'|\bTAGS\s*=\s*('[^']*')\s+AND\s+TAGS\s*=\s*('[^']*')", re.IGNORECASE)
# operators that brokers do not know. From such an operator on, brokers silently ignore the rest of a condition
_NOT_SQL: Final = re.compile(r"\bLIKE\s+'(%?)([^'%_]+)(%?)'(?!')|'[^']*'|\|\||&&|==|!=", re.IGNORECASE)
_IN_SQL: Final = {"||": "OR", "&&": "AND", "==": "=", "!=": "<>"}
_LIKE: Final = {"": "=", "%": "ENDSWITH", " %": "STARTSWITH", "% %": "CONTAINS"}
_ONLY_TAGS: Final = re.compile(r"(?!(?:TRUE|FALSE)$)\w+(?:\s+OR\s+\w+)*", re.IGNORECASE)
_CONDITION: Final = re.compile(r"[=<>]|!|\b(?:not|is|in|like|between)\s", re.IGNORECASE)


def filter_mistake(expression: str, kind: str) -> str | None:
    """Return why a filter probably matches no message, and the intended filter; None if the filter is fine."""
    if (meant := intended_filter(expression, kind)) is None:
        return None
    why = "matches no message, because || joins tags"
    if kind == EXPRESSION_SQL92:
        why = "is a mistake: quotes must be straight, TAGS is one tag, and LIKE, &&, ||, == and != do not exist"
    return f"{expression!r} {why}; expected {meant}"


def intended_filter(expression: str, kind: str) -> str | None:
    """Return the filter that the user probably meant, as YAML, if `expression` looks wrong; None if it is fine."""
    straight = condition = _sub(_TYPOGRAPHIC_QUOTE, lambda _: "'", expression.strip())
    if "TAGS" not in straight:  # if the filter names TAGS, `tag` is a property
        condition = _sub(_TAGS_IN_SQL, lambda _: "TAGS", straight)
    if kind == EXPRESSION_SQL92:
        condition = _sub(_NOT_SQL, _in_sql, condition)
        if _ONLY_TAGS.fullmatch(condition):
            condition = _tag_test(re.split(r"\s+OR\s+", condition, flags=re.IGNORECASE))
    condition = _sub(_TAG_TEST, lambda found: _tag_test((found[1] or found[2]).split("||")), condition)
    condition = _sub(_BOTH_TAGS, lambda found: f"TAGS IN ({found[1]}, {found[2]})", condition)
    if kind == EXPRESSION_SQL92:
        return None if condition == expression.strip() else f"{{sql: {quoted(condition)}}}"
    tags = [tag.strip() for tag in expression.split("||") if tag.strip()]
    parts = [_bare(part) for tag in tags for part in _BETWEEN_TAGS.split(_bare(tag))]
    parts = [part for part in parts if part]
    starts = {part: found[1] for part in parts if (found := _WILDCARD.fullmatch(part))}
    if parts != [SUBSCRIPTION_ALL] and starts:
        tests = (f"TAGS STARTSWITH '{starts[part]}'" if part in starts else f"TAGS = '{part}'" for part in parts)
        return f"{{sql: {quoted(' OR '.join(tests))}}}" if all(starts.values()) else quoted(SUBSCRIPTION_ALL)
    if any(map(_CONDITION.search, tags)):
        excluded = re.fullmatch(r"(?:!=?|<>|not\s)\s*(\w+)", straight, re.IGNORECASE)
        return f"{{sql: {quoted(f'TAGS <> {excluded[1]!r}' if excluded else condition)}}}"
    return None if parts == tags else quoted(" || ".join(parts))


def _sub(pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str], condition: str) -> str:
    """Replace the matches of a pattern outside quotes. To skip quoted texts, the pattern must also match them."""
    return pattern.sub(lambda found: found[0] if found[0][0] == "'" else replace(found), condition)


def _in_sql(found: re.Match[str]) -> str:
    """Return the operator that brokers know for an operator of another language, such as OR for ||."""
    if found[2] is None:
        return _IN_SQL[found[0]]
    front, text, end = found.groups()
    return f"{_LIKE[f'{front} {end}'.rstrip()]} '{text}'"


def _tag_test(tags: list[str]) -> str:
    tags = [f"'{tag.strip()}'" for tag in tags]
    return f"TAGS IN ({', '.join(tags)})" if len(tags) > 1 else f"TAGS = {tags[0]}"


def _bare(tag: str) -> str:
    """Return a tag without the quotes and brackets around it. Brackets that belong to the tag stay: `refund(part)`."""
    bare = tag.strip(_QUOTES).lstrip("([")
    while bare and bare[-1] in _BRACKETS and _BRACKETS[bare[-1]] not in bare:
        bare = bare[:-1]
    return bare if bare == tag else _bare(bare)


def quoted(text: str) -> str:
    """Return a text in YAML's double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def tag_subscription(topic: str, expression: str | None, version: int) -> SubscriptionData:
    """Return a subscription to tags, such as "paid || refunded"; to all messages if the expression is "*" or empty.

    `version` is the present time in Unix milliseconds. Raises InvalidNameError if the expression contains no tag.
    """
    stripped = (expression or "").strip()
    if stripped in ("", SUBSCRIPTION_ALL):
        return SubscriptionData(topic, SUBSCRIPTION_ALL, sub_version=version)
    tags = frozenset(filter(None, (tag.strip() for tag in stripped.split("||"))))
    if not tags:
        raise InvalidNameError(
            f'the tag expression {expression!r} contains no tag; expected "*" or tags joined by "||"'
        )
    return SubscriptionData(topic, stripped, tags, frozenset(map(java_hash, tags)), version)


def sql_subscription(topic: str, expression: str, version: int) -> SubscriptionData:
    """Return a subscription with an SQL92 condition, which the broker checks. `version` is in Unix milliseconds."""
    if not expression.strip():
        raise InvalidNameError("an SQL92 expression must not be empty")
    return SubscriptionData(topic, expression, sub_version=version, expression_type=EXPRESSION_SQL92)


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` (signed, 32 bits). Brokers store and compare this hash of tags."""
    data = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for unit in unpack(f">{len(data) // 2}H", data):
        result = (31 * result + unit) & 0xFFFFFFFF
    return result - 2**32 if result & 0x80000000 else result
