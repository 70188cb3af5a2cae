"""Invalid arguments: exit code 2, nothing on standard output, and the expected value."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from rmqd.errors import ExitCode
from tests.cli.in_process import rmqd

# a command line, and a part of its standard error, compared without case
WRONG = [
    ("check -o xml", "unknown format xml; expected table or json"),
    ("check --nonsense", "--nonsense"),
    ("nonsense", "No such command"),
    ("check rmqd.yaml", "the configuration is an option; use rmqd check --config rmqd.yaml"),
    ("status -o xml", "expected table or json"),
    ("groups mode g t push -n 127.0.0.1:1", "unknown mode push; expected pop or pull"),
    ("send 'bad topic' x", "'bad topic' contains a character that RocketMQ refuses"),
    ("send orders x --property novalue", "'novalue' is not of the form k=v"),
    ("send orders x --count 0", "--count"),
    ("send orders x -o xml", "expected table or json"),
    ("send orders x --nameserver nowhere", 'expected host:port or "host:port;host:port"'),
    ("send orders", "BODY"),
    ("send orders x --delay-level 19", "--delay-level"),
    ("send orders x --delay 5", "'5' has no unit; expected a duration such as"),
    ("send orders x --delay 0s", "expected 1ms or longer"),
    ("send orders x --deliver-at 2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z has passed"),
    ("send orders x --deliver-at 2126-01-01T00:00:00", "has no time zone; expected ISO 8601"),
    ("send orders x --delay 1s --delay-level 3", "given with --delay-level; expected one of"),
    ("send orders x --delay 1s --deliver-at @1", "given with --delay; expected one of"),
    ("send orders x --queue first", "'first' is not a queue; expected an id"),
    ("send orders x --queue :1", "':1' is not a queue"),
    ("send orders x --queue 1 --sharding-key a", "expected --sharding-key or --queue"),
    ("send orders x --sharding-key ''", "must not be empty"),
    ("send orders x -p TAGS=a --tags b", "--tags sets TAGS"),
    ("send orders x --tags 'a || b'", "'a || b' is an expression, and a message has one tag"),
    ("lag g --fail-over 5", "expected a duration such as 50ms, 5s, 15m or 1h"),
    ("lag -n 127.0.0.1:1", "give group names, or a configuration"),
    ("lag g -o yaml", "expected table or json"),
    ("tail t --tags a --sql b -n 127.0.0.1:1", "expected only one of them"),
    ("tail t --since yesterday -n 127.0.0.1:1", "or an age such as 10m"),
    ("tail t --tags '||' -n 127.0.0.1:1", "contains no tag"),
    ("offsets reset g t -n 127.0.0.1:1", "one of --to and --skip"),
    ("offsets reset g t --to first --skip 1 -n 127.0.0.1:1", "given together with --skip; expected only one of them"),
    ("offsets reset g t --to yesterday -n 127.0.0.1:1", "or first, last, or an offset"),
    ("offsets reset g t --to 2026-01-01T00:00:00 -n 127.0.0.1:1", "has no time zone"),
    ("offsets reset g t --to first --wait 5 -n 127.0.0.1:1", "5"),
    ("offsets restore absent.json -n 127.0.0.1:1", "absent.json"),
    ("try g --from 1h --to 2h -n 127.0.0.1:1", "--to: is not after --from"),
    ("convert rmqd.java", "expected a .properties, .yml or .yaml file"),
    ("broker --listen 9876", "'9876' is not HOST:PORT, such as 127.0.0.1:9876"),
    ("broker --listen 127.0.0.1:65536", "is not HOST:PORT"),
    ("broker --topic shop:0", "'shop:0' is not name:queues, such as orders:4, with up to 1024 queues"),
    ("broker --topic shop:", "'shop:' is not name:queues"),
    ("broker --topic 'a shop:4'", "contains a character that RocketMQ refuses"),
    ("broker --setting brokerName", "'brokerName' is not name=value"),
    ("broker --setting brokerNane=x", "unknown setting 'brokerNane'; expected one of brokerClusterName, "),
    ("broker --setting maxMessageSize=big", "maxMessageSize='big': expected an integer"),
    ("broker --broker-port 70000", "--broker-port"),
]


def test_invalid_arguments_are_refused_with_the_expected_value() -> None:
    wrong = []
    for line, said in WRONG:
        ended = rmqd(*shlex.split(line))
        told = " ".join(ended.err.split()).lower()
        if (ended.code, ended.out) != (ExitCode.USAGE, "") or said.lower() not in told:
            wrong.append((line, ended))
    assert wrong == []


# the first error is found by the command itself
JSON_WRONG = [
    ("offsets reset mailer orders --to 2026-11-25T08:00:00", "no time zone"),
    ("offsets reset mailer orders --skip 0", "--skip"),
    ("groups show", "GROUP"),
    ("lag --bogus", "--bogus"),
    ("lga", "Did you mean 'lag'?"),
    ("dlq shwo mailer", "Did you mean 'show'?"),
]


@pytest.mark.parametrize("asks", [("-o", "json"), ("--output=json",)], ids=" ".join)
def test_usage_errors_are_json_with_output_json(asks: tuple[str, ...]) -> None:
    for line, said in JSON_WRONG:
        ended = rmqd(*line.split(), "-n", "127.0.0.1:1", *asks)
        assert (ended.code, ended.json()["problems"]) == (ExitCode.USAGE, []), line
        assert said in ended.json()["error"]
        assert ended.err.startswith("Usage: "), line
        assert rmqd(*line.split(), "-n", "127.0.0.1:1").out == "", line


def test_a_missing_configuration_exits_with_78() -> None:
    for words in (("check",), ("send", "orders", "x"), ("status",), ("lag", "mailer")):
        ended = rmqd(*words, "--config", "absent.yaml")
        told = "absent.yaml: no such file or folder, named by --config\n"
        assert (ended.code, ended.out) == (ExitCode.CONFIG, ""), words
        assert ended.err.startswith(told), words


def test_send_reports_unsent_messages_if_the_cluster_is_unreachable() -> None:
    ended = rmqd("send", "orders", "x", "--nameserver", "127.0.0.1:1")
    assert (ended.code, ended.out) == (ExitCode.UNAVAILABLE, "")
    for said in ("RocketMQ cannot be reached", "127.0.0.1:1", "0 of 1 messages were sent"):
        assert said in ended.err
    assert "Traceback" not in ended.err


def test_the_name_server_of_the_environment_is_used_if_no_other_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "set.yaml").write_text("nameserver: 127.0.0.1:2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RMQD_CONFIG", raising=False)
    ended = rmqd("topics", "list")
    assert (ended.code, "; without a configuration, give --nameserver or set $NAMESRV_ADDR" in ended.err) == (78, True)
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    for options, address in ([], "127.0.0.1:1"), (["-n", "127.0.0.1:3"], "127.0.0.1:3"), (["-c", "set.yaml"], ":2"):
        ended = rmqd("topics", "list", *options)
        assert (ended.code, address in ended.err) == (69, True), ended.err
    monkeypatch.setenv("NAMESRV_ADDR", "here")
    ended = rmqd("topics", "list")
    assert (ended.code, "$NAMESRV_ADDR" in ended.err) == (2, True), ended.err
