"""The source's options: their values, and the errors for invalid ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmqd.errors import ConfigError
from rmqd.spark.session.queue_range import EVERY_MESSAGE
from rmqd.spark.source.source_columns import PERMISSIVE_COLUMNS
from rmqd.spark.source.source_offsets import OffsetBound
from rmqd.spark.source.source_options import parse_options
from rmqd.wire.bodies.heartbeat_data import sql_subscription, tag_subscription
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import TOOLS_GROUP

NEEDED = {"nameserver": "127.0.0.1:9876", "subscribe": "orders"}


def problems(**options: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse_options({**NEEDED, **{name.replace("__", "."): value for name, value in options.items()}})
    return [str(problem) for problem in raised.value.problems]


def test_option_names_are_accepted_in_lower_case() -> None:
    options = parse_options(
        {"nameserver": "ns1:9876, ns2:9876", "subscribe": "b, a,b", "maxoffsetspertrigger": "500",
         "fetchoffset.intervalms": "50", "failondataloss": "FALSE", "tags": "paid || refunded", "columns": "body,Topic",
         "checkcrc": "false"}
    )  # fmt: skip
    assert (options.access.options.nameserver_for_output, options.topics) == ("ns1:9876;ns2:9876", ("b", "a"))
    assert (options.max_offsets, options.fetch_interval_seconds, options.fail_on_data_loss) == (500, 0.05, False)
    assert options.subscription == tag_subscription("", "paid || refunded", 0)
    assert options.columns == ("body", "topic")
    assert not options.checks_crc


def test_without_a_group_nothing_is_committed_and_no_group_is_created() -> None:
    """Pulls name a group that every broker has."""
    options = parse_options(NEEDED)
    assert (options.group, options.commit_offsets, options.start_bound) == ("", False, None)
    assert options.pull.group == TOOLS_GROUP


def test_with_a_group_the_source_starts_at_its_offset_and_commits() -> None:
    options = parse_options({**NEEDED, "groupId": "reports"})
    assert (options.commit_offsets, options.start_bound, options.pull.group) == (
        True,
        OffsetBound("committed"),
        "reports",
    )
    assert not parse_options({**NEEDED, "groupId": "reports", "commitOffsets": "false"}).commit_offsets


def test_offsets_are_named_by_queue() -> None:
    """-2 is the earliest and -1 the latest."""
    options = parse_options({**NEEDED, "startingOffsets": '{"orders": {"broker-a": {"0": 120, "1": -2}}}'})
    by_queue = {MessageQueue("orders", "broker-a", 0): 120, MessageQueue("orders", "broker-a", 1): -2}
    assert options.start_bound == OffsetBound("offsets", by_queue=by_queue)


def test_times_are_milliseconds_or_text_or_relative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative times count from now."""
    cases: list[tuple[str, int]] = [
        ("1772359200000", 1772359200000),
        ("2026-03-01T11:00:00+01:00", 1772359200000),
        ("-90m", 1772362800000 - 5400000),
    ]
    for text, timestamp_ms in cases:
        monkeypatch.setattr("time.time", lambda: 1772362800.0)
        options = parse_options({**NEEDED, "startingTimestamp": text, "endingTimestamp": text})
        assert options.start_bound == options.end_bound == OffsetBound("timestamp", timestamp_ms=timestamp_ms)


def test_all_invalid_options_are_reported_at_once() -> None:
    """The user of a notebook can correct them in one go."""
    said = problems(minPartitions="0", failOnDataLoss="yes", subscrib="x", sql="a > 1", tags="b", nameserver="nohost")
    names = [line.partition(":")[0] for line in said]
    assert sorted(names) == ["failOnDataLoss", "minPartitions", "nameserver", "sql", "subscrib"]


def test_each_error_names_the_problem_or_the_expected_value() -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"assign": '{"orders": {"broker-a": [0]}}'}, "exactly one of subscribe, subscribePattern, assign"),
        ({"startingOffsets": "committed"}, "needs groupId"),
        ({"commitOffsets": "true"}, "needs groupId"),
        ({"startingOffsets": "newest"}, "expected earliest, latest, committed, or JSON"),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": -3}}}'}, "is not a valid offset"),
        ({"endingOffsets": "earliest"}, "expected latest, or JSON"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "startingOffsets is also set"),
        ({"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"}, "is more than maxOffsetsPerTrigger"),
        ({"minPartitions": "8", "maxPartitions": "4"}, "minPartitions: 8 is more than maxPartitions, 4"),
        ({"maxTriggerDelay": "15"}, "is not a valid duration"),
        ({"columns": "body,bdoy"}, "unknown column bdoy; expected one of topic, broker"),
        ({"subscribe": " , "}, "contains no topic"),
        ({"subscribe": "or ders"}, "or ders"),
        ({"groupId": "DEFAULT_CONSUMER"}, "reserved"),
        ({"tags": "||"}, "contains no tag"),
        ({"startingTimestamp": "yesterday"}, "'yesterday' is not a valid time; expected milliseconds since 1970"),
        ({"endingTimestamp": "2026-03-01T10:00:00"}, "has no time zone"),
        ({"endingTimestamp": "-1w"}, "'-1w' is not a valid time"),
        ({"includeRetryTopic": "true"}, "needs groupId"),
        ({"queueRetention": "3d"}, "is not a valid duration"),
        ({"mode": "DROPMALFORMED"}, "expected FAILFAST or PERMISSIVE"),
        ({"startingTimestamp": "1772359200"}, "1772359200 is before the year 2000; expected milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": '{"orders": {"broker-a": {"0": 1772359200}}}'}, "is before the year 2000"),
        (
            {"kafka__bootstrap__servers": "ns:9876"},
            "kafka.bootstrap.servers: there is no such option; expected nameserver",
        ),
        ({"INCLUDEHEADERS": "true"}, "INCLUDEHEADERS: there is no such option; expected includeProperties"),
        ({"kafka.group.id": "reports"}, "there is no such option; expected groupId"),
        ({"namesrv": "127.0.0.1:9876"}, "namesrv: there is no such option; did you mean nameserver?"),
        ({"xyz": "1"}, "xyz: there is no such option; expected one of nameserver, "),
        ({"provider": "rocketmq", "option.subscribe": "orders"}, "use CREATE TEMPORARY VIEW name USING rocketmq"),
    ]
    for options, said in cases:
        assert any(said in line for line in problems(**options)), problems(**options)


def test_a_name_server_and_a_topic_are_required() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_options({})
    assert [str(problem).partition(":")[0] for problem in raised.value.problems] == ["nameserver", "subscribe"]


def test_retries_are_not_filtered() -> None:
    """They matched the filter at their first delivery. Retry topics of other groups are treated like any topic."""
    paid, numbers = tag_subscription("", "paid", 0), sql_subscription("", "n > 5", 0)
    options = parse_options({**NEEDED, "groupId": "reports", "includeRetryTopic": "true", "tags": "paid"})
    assert options.retry_topic == "%RETRY%reports"
    assert options.filter_of("%RETRY%reports") == EVERY_MESSAGE
    assert options.filter_of("orders") == options.filter_of("%RETRY%others") == paid
    other = replace(options, filter_by_topic={"orders": numbers})
    assert (other.filter_of("orders"), other.filter_of("bills")) == (numbers, paid)


def test_the_default_columns_are_those_of_kafkas_source() -> None:
    """Other columns are read by name, or all of them by `*`. A time after the last message is an error, as in Kafka."""
    seven = ("keys", "body", "topic", "queue_id", "queue_offset", "store_timestamp", "tags")
    assert parse_options(NEEDED).columns == seven
    assert parse_options({**NEEDED, "includeProperties": "true"}).columns == (*seven, "properties")
    assert parse_options({**NEEDED, "columns": "*", "mode": "permissive"}).columns == PERMISSIVE_COLUMNS
    assert parse_options(NEEDED).must_find_timestamp
    assert not parse_options({**NEEDED, "startingOffsetsByTimestampStrategy": "latest"}).must_find_timestamp


def test_permissive_mode_adds_a_column_for_errors() -> None:
    assert parse_options({**NEEDED, "mode": "permissive"}).columns[-1] == "decode_error"
    assert "decode_error" not in parse_options({**NEEDED, "mode": "failfast"}).columns
    assert parse_options({**NEEDED, "mode": "permissive", "columns": "body"}).columns == ("body",)


def test_a_stream_has_no_end() -> None:
    """Kafka's source refuses these as well."""
    options = parse_options({**NEEDED, "endingTimestamp": "1772359200000"})
    with pytest.raises(ConfigError, match="endingTimestamp: a stream has no end"):
        options.refuse_batch_only_options()
