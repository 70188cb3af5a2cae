"""docs/migrating.md against the Java client's settings and against the values that the configuration accepts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from rmqd.config.model.forms import keys_of, kind_of, place_of_java_name
from rmqd.config.model.group_model import GroupConfig, HandlerConfig, StrategyName
from rmqd.config.model.java_names import REASONS
from rmqd.config.model.root_model import ClientConfig, RootConfig, TlsConfig
from rmqd.config.problems import path_text
from rmqd.runtime.value_kinds import ValueKind, parse_duration_ms, parse_size_bytes
from tests.docs.java_push_consumer import names

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "migrating.md").read_text()
SETTINGS = names("settings: ")
# kinds of values without a range; test_no_range_is_missing_on_the_page checks that their keys have none
UNRANGED = {
    "host:port, `host:port;host:port`, or a list", "names", "topics", "a topic", "a plugin", "a point in time", "text",
    "queues",
}  # fmt: skip
RANGE = re.compile(r"(?P<low>-?\w+) (to (?P<high>\w+)|or more)(, or (?P<also>-1))?")


@dataclass(frozen=True, slots=True)
class Row:
    """A Java setting and the rmqd key for it, from the page."""

    java: str
    key: str
    default: str
    accepted: str

    @property
    def field(self) -> FieldInfo:
        """The key's field in the configuration's models."""
        return field_of(self.key)

    def accepts(self, value: object) -> bool:
        """Whether the configuration accepts this value for the key."""
        try:
            TypeAdapter(self.field.rebuild_annotation()).validate_python(value)
        except ValidationError:
            return False
        return True


def tables(width: int) -> Iterator[list[str]]:
    """The cells of each row in tables with `width` columns, without head rows and outer pipes."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == width and cells[0].startswith("`"):
            yield cells


def bare(cell: str) -> str:
    """A name without its backticks."""
    return cell.strip("`")


KEYED = [Row(bare(java), bare(key), default, accepted) for java, key, default, accepted, _ in tables(5)]
REFUSED = {bare(cells[0]): cells[1] for cells in tables(2) if "." not in cells[0]}


def field_of(key: str) -> FieldInfo:
    """The field of a dotted key; keys of a group begin at the group."""
    first, *rest = key.split(".")
    field = (keys_of(RootConfig) | keys_of(GroupConfig))[first]
    for step in rest:
        [model] = [
            one
            for one in (field.annotation, *getattr(field.annotation, "__args__", ()))
            if isinstance(one, type) and issubclass(one, BaseModel)
        ]
        field = keys_of(model)[step]
    return field


def failing(rows: Iterable[Row], check: Callable[[Row], None]) -> list[str]:
    """Check each row, and return the errors."""
    found = []
    for row in rows:
        try:
            check(row)
        except AssertionError as error:
            found.append(f"{row.java}: {error}")
    return found


def test_every_java_setting_has_a_key_or_a_reason() -> None:
    """But not both."""
    keyed = Counter(row.java for row in KEYED)

    assert {name: keyed[name] for name in SETTINGS if keyed[name] + (name in REFUSED) != 1} == {}
    assert [name for name in SETTINGS if name in REFUSED and len(REFUSED[name]) <= 10] == []


def test_errors_about_java_settings_name_the_keys_of_the_page() -> None:
    """`rmqd check` names the same key for a Java setting as the page."""

    def check(row: Row) -> None:
        place = place_of_java_name(RootConfig, row.java)
        assert place is not None
        assert path_text(place).removeprefix("groups.NAME.") == row.key

    assert failing(KEYED, check) == []
    assert [name for name in REFUSED if name not in REASONS and place_of_java_name(RootConfig, name) is None] == []


def test_the_pages_defaults_are_the_configurations() -> None:
    """In the notation of the file; "none" for a key without a default."""

    def check(row: Row) -> None:
        kind, default = kind_of(row.field), row.field.get_default(call_default_factory=True)
        default = kind.as_written(default) if isinstance(kind, ValueKind) else default
        if row.default == "none":
            assert row.field.is_required() or not default
            assert default != ""  # an empty text is a default, and would be written as one
        else:
            assert yaml.safe_load(bare(row.default)) == default

    assert failing(KEYED, check) == []


def test_the_configuration_accepts_exactly_the_values_of_the_page() -> None:
    """Both ends of a range or the words of a choice are accepted, and values just outside are refused."""

    def check(row: Row) -> None:
        if row.accepted == "true or false":
            assert [row.accepts(value) for value in (True, False, "yes", 1)] == [True, True, False, False]
        elif row.accepted.startswith("`"):
            kind: Any = kind_of(row.field)
            assert set(map(bare, row.accepted.split(", "))) == set(kind.words)
            assert row.accepts(kind.words[0])
            assert not row.accepts("something_else")
        else:
            range_ = RANGE.fullmatch(row.accepted)
            assert range_ is not None, f"{row.accepted} is not a range, a choice, or in UNRANGED"
            check_range(row, range_)

    assert failing([row for row in KEYED if row.accepted not in UNRANGED], check) == []


def check_range(row: Row, range_: re.Match[str]) -> None:
    low, high = range_["low"], range_["high"]
    scale, unit = scale_of(low)
    at_low = scale(low)
    assert row.accepts(written(at_low, unit))
    if at_low or not unit:  # a duration below 0s cannot be written
        below = at_low - 1
        assert row.accepts(written(below, unit)) == (range_["also"] == str(below) and not unit)
    if high:
        assert row.accepts(written(scale(high), unit))
        assert not row.accepts(written(scale(high) + 1, unit))
    else:
        assert row.accepts(written(max(at_low, 1) * 10**6, unit))
    assert row.accepts(-1) == (range_["also"] == "-1" or low == "-1")


def scale_of(text: str) -> tuple[Any, str]:
    """The parser for a range's values, and the smallest unit to write values just outside of it."""
    if re.fullmatch(r"-?\d+", text):
        return int, ""
    return (parse_size_bytes, "B") if text.endswith("B") else (lambda value: int(parse_duration_ms(value)), "ms")


def written(amount: int, unit: str) -> int | str:
    return f"{amount}{unit}" if unit else amount


def test_no_range_is_missing_on_the_page() -> None:
    """A key has no range or choice if the page does not show one."""
    ranged = [
        row.java
        for row in KEYED
        if row.accepted in UNRANGED
        for kind in (kind_of(row.field),)
        if {"minimum", "maximum", "words"} & set(getattr(kind, "__dict__", ())) and not isinstance(kind, StrategyName)
    ]
    assert ranged == []


def test_every_key_is_on_a_page() -> None:
    """On docs/migrating.md or docs/configuration.md."""
    named = {part for quoted in re.findall(r"`([^`\n]+)`", PAGE) for part in quoted.split()}
    keys = {
        *keys_of(GroupConfig),
        *(f"handler.{key}" for key in HandlerConfig.model_fields),
        *(f"client.{key}" for key in keys_of(ClientConfig)),
        *(f"client.tls.{key}" for key in TlsConfig.model_fields),
    } - {"handler", "client.tls"}

    assert keys - named - configuration_keys() == set()


def configuration_keys() -> set[str]:
    """The keys in the tables of docs/configuration.md; keys of a group begin at the group."""
    keys, section = set(), ""
    for line in (DOCS / "configuration.md").read_text().splitlines():
        if line.startswith("### "):
            section = "".join(re.findall(r"^### `([\w.]+)`", line))
        elif cell := re.match(r"\| `(\w+)` \|", line):
            keys.add(f"{section}.{cell[1]}".removeprefix("groups.NAME.").removeprefix("."))
    return keys


def test_every_attribute_of_springs_annotation_has_a_row() -> None:
    """Attributes of rocketmq-spring 2.3.5 and, in the last line, of its next version. Each named key exists."""
    attributes = set(
        "consumerGroup topic selectorType selectorExpression consumeMode messageModel consumeThreadMax nameServer "
        "consumeThreadNumber maxReconsumeTimes consumeTimeout replyTimeout accessKey secretKey enableMsgTrace "
        "tlsEnable customizedTraceTopic accessChannel namespace delayLevelWhenNextConsume "
        "suspendCurrentQueueTimeMillis awaitTerminationMillisWhenShutdown instanceName namespaceV2 "
        "pullInterval pullBatchSize consumeMessageBatchMaxSize consumeFromWhere".split()
    )
    section = (DOCS / "from-java.md").read_text().split("\n## Spring's annotation\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \| (.*) \|$", section, re.MULTILINE)[1:]

    assert {name for names, _ in rows for name in re.findall(r"`(\w+)`", names)} == attributes
    keys = [key for _, here in rows if here[:4] != "none" for key in re.findall(r"`([a-z_.]+)(?=[:`])", here)]
    assert len(keys) >= len(rows) - 2
    for key in keys:
        field_of(key)
