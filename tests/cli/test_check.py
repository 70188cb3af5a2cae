"""The commands `rmqd check` and `rmqd handlers`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rmqd import __version__
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ExitCode, install_command
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rmqd.wire.bodies.route_data import BrokerData, ClusterInfo
from rmqd.wire.core import core_name
from tests.cli.in_process import rmqd
from tests.client.peer import Peer, Reply, route_of, routes

TOP = Path(__file__).parents[2]
SAMPLE = TOP / "config" / "rmqd.yaml"

GOOD = """\
nameserver: 127.0.0.1:9876
groups:
  mailer:
    subscriptions: {orders: "paid || refunded", invoices: {sql: "amount > 100"}}
    handler: {plugin: log}
"""
BAD = """\
nameserver: 127.0.0.1:9876
groups:
  mailer:
    subscriptions: {orders: "*"}
    handler:
      plugin: log
      concurrency: 0
    consume_timeout: 15
"""
BAD_LINES = [
    "rmqd.yaml:7:20: groups.mailer.handler.concurrency: 0 is out of range; expected a whole number from 1 to 1000, "
    "or auto",
    "rmqd.yaml:8:22: groups.mailer.consume_timeout: 15 has no unit; "
    "expected a duration such as 50ms, 5s, 15m or 1h, at least 1ms",
]


WEBHOOK = """\
nameserver: 127.0.0.1:9876
groups:
  hooks:
    subscriptions: {orders: "*"}
    handler:
      plugin: webhook
      options: {url: "http://127.0.0.1:1/", OPTIONS}
"""


def test_check_warns_of_more_concurrency_than_the_handler_can_use() -> None:
    cases: list[tuple[list[str], str, str]] = [
        (["concurrency: auto"], "", "auto (up to 256) is above max_connections of the handler webhook, which is 20"),
        (["concurrency: 50"], "max_connections: 49", "50 is above max_connections of the handler webhook, which is 49"),
        (["concurrency: 20"], "", ""),
        (["concurrency: auto"], "max_connections: 256", ""),
        ([], "max_connections: 3", ""),  # the default of 20 was not set explicitly
    ]
    for keys, options, told in cases:
        Path("rmqd.yaml").write_text(WEBHOOK.replace("OPTIONS", options) + "".join(f"      {key}\n" for key in keys))
        result = rmqd("check", "--config", "rmqd.yaml")
        assert result.code == 0, keys
        line = f"warning: rmqd.yaml:8:20: groups.hooks.handler.concurrency: {told}: more calls wait in the handler"
        assert result.err.startswith(line) if told else result.err == "", (keys, options, result.err)


def test_check_warns_of_keys_without_effect() -> None:
    group = "subscriptions: {orders: '*'}"
    wrong = []
    for keys, told in (
        ("circuit_breaker: {open_for: 15s}", "circuit_breaker: has no effect alone; expected consecutive"),
        ("circuit_breaker: {consecutive: 0, open_for: 15s}", ""),  # switched off by its own key
        ("retry: {on: [ValueError]}", "retry.on: has no effect, because retry.in_place is 0; expected"),
        ("retry: {in_place: 1, on: [ValueError]}", ""),
        ("retry: {in_place: 1, backoff: 9s}", "retry.backoff: longer than max_backoff, so each pause is 5 s; expected"),
        (
            "consume_message_batch_max_wait: 1s",
            "consume_message_batch_max_wait: a batch of one message is always full",
        ),
        ("consume_message_batch_max_wait: 1s, consume_message_batch_max_size: 2", ""),
        ("deduplicate: ", "deduplicate: empty, so nothing is deduplicated; expected {} for all defaults"),
        ("deduplicate: {}", ""),
        (
            "retry: {in_place: 1, on: [a.E, V]}, dead_letter: {on: [E]}",
            "retry.on: a.E is also in dead_letter.on",
        ),
        ("retry: {in_place: 1, on: [a.E]}, dead_letter: {on: [b.E]}", ""),
        ("consume_timestamp: 2026-01-01T00:00:00Z", "consume_timestamp: has no effect; set consume_from_"),
        ("auto_commit: false", "auto_commit: has no effect; set consume_mode: orderly, or remove this key"),
        ("auto_commit: false, consume_mode: orderly", ""),
        ("retry: {max_backoff: 9s}", "retry.max_backoff: has no effect; set retry.in_place above 0, or remove"),
        ("pop_invisible_time: 8s", "pop_invisible_time: has no effect; set consume_mode: pop, or remove this key"),
        ("suspend_current_queue_time: 2s", "suspend_current_queue_time: has no effect; set consume_mode: orderly"),
        (
            "consume_mode: orderly, delay_level_when_next_consume: 3",
            "delay_level_when_next_consume: has no effect; set consume_mode: concurrently",
        ),
        ("consume_mode: orderly, order_by: keys, delay_level_when_next_consume: 3", ""),
        ("message_model: broadcasting, max_reconsume_times: 3", "max_reconsume_times: has no effect; set message"),
        ("message_model: broadcasting, consume_mode: orderly, max_reconsume_times: 3", ""),
        (
            "handler: {plugin: log, max_concurrency: 9}",
            "handler.max_concurrency: has no effect; set",
        ),
        ("handler: {plugin: log, max_concurrency: 9, concurrency: auto}", ""),
        (
            "handler: {plugin: log, concurrency: 9, processes: 2}",
            "handler.concurrency: has no effect; set h",
        ),
    ):
        given = keys if "handler: " in keys else f"handler: {{plugin: log}}, {keys}"
        Path("rmqd.yaml").write_text(f"nameserver: 127.0.0.1:9876\ngroups:\n  mailer: {{{group}, {given}}}\n")
        result = rmqd("check", "--config", "rmqd.yaml")
        if (result.code, f": groups.mailer.{told}" in result.err if told else not result.err) != (0, True):
            wrong.append((keys, result))
    assert wrong == []
    Path("rmqd.yaml").write_text(f"{GOOD}client: {{tls: {{ca_file: ''}}}}\n")
    told = "warning: client.tls: has no effect without enabled: true, so the connections are not encrypted\n"
    assert rmqd("check", "--config", "rmqd.yaml").err == told


def test_check_reports_a_good_configuration_group_by_group() -> None:
    Path("rmqd.yaml").write_text(GOOD)
    result = rmqd("check", "--config", "rmqd.yaml")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "OK           nameserver 127.0.0.1:9876",
        "OK           mailer: orders (paid || refunded), invoices (amount > 100) to handler log",
    ]


def test_the_password_of_an_address_server_is_not_printed() -> None:
    """The output stays in terminals, and in the logs of a deployment."""
    url = "nameserver_url: http://user:s3cret@10.0.0.1/ns?key=s3cret"
    Path("rmqd.yaml").write_text(GOOD.replace("nameserver: 127.0.0.1:9876", url))
    result = rmqd("check", "--config", "rmqd.yaml")
    assert result.code == 0
    assert result.out.splitlines()[0] == "OK           nameserver http://user:***@10.0.0.1/ns?***"
    assert "s3cret" not in result.out + result.err


def test_a_bad_configuration_prints_every_problem_on_stderr_and_exits_with_78() -> None:
    Path("rmqd.yaml").write_text(BAD)
    result = rmqd("check", "--config", "rmqd.yaml")
    assert (result.code, result.out) == (78, "")
    assert result.err.splitlines() == BAD_LINES


@pytest.mark.process
def test_check_as_a_process_prints_the_same_problems() -> None:
    Path("config").mkdir()
    Path("config/rmqd.yaml").write_text(BAD)
    command = [sys.executable, "-m", "rmqd", "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.splitlines() == [f"config/{line}" for line in BAD_LINES]


def test_json_has_the_problems_as_data() -> None:
    Path("rmqd.yaml").write_text(BAD)
    result = rmqd("check", "--config", "rmqd.yaml", "-o", "json")
    assert result.code == 78
    document = json.loads(result.out)
    assert (document["ok"], document["groups"]) == (False, [])
    assert document["problems"][0] == {
        "place": "rmqd.yaml:7:20",
        "key": "groups.mailer.handler.concurrency",
        "message": "0 is out of range; expected a whole number from 1 to 1000, or auto",
    }
    Path("rmqd.yaml").write_text(GOOD)
    result = rmqd("check", "--config", "rmqd.yaml", "-o", "json")
    assert json.loads(result.out) == {"ok": True, "groups": ["mailer"], "problems": []}


def test_check_applies_set_options() -> None:
    Path("rmqd.yaml").write_text(BAD)
    mended = ["--set", "groups.mailer.handler.concurrency=1", "--set", "groups.mailer.consume_timeout=15m"]
    assert rmqd("check", "-c", "rmqd.yaml", *mended).code == 0
    broken = rmqd("check", "-c", "rmqd.yaml", *mended, "--set", "log.level=loud")
    expected = "--set log.level: log.level: 'loud' is not a choice; expected debug | info | warning | error\n"
    assert (broken.code, broken.err) == (78, expected)


def test_connect_exits_with_69_if_the_name_server_is_unreachable() -> None:
    Path("rmqd.yaml").write_text(GOOD.replace(":9876", ":1"))
    result = rmqd("check", "-c", "rmqd.yaml", "--connect", "-o", "json")
    assert result.code == 69
    document = json.loads(result.out)
    assert document["ok"] is False
    assert {one["level"] for one in document["checks"]} == {"unreachable"}


async def test_connect_names_a_broker_in_the_place_of_a_name_server() -> None:
    async with Peer() as peer:  # like a broker, it supports no request of name servers
        Path("rmqd.yaml").write_text(GOOD.replace("127.0.0.1:9876", peer.address))
        refused = Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type not supported")
        peer.on(RequestCode.GET_BROKER_CLUSTER_INFO, refused)
        peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, refused)
        ended = await asyncio.to_thread(rmqd, "check", "--connect", "-c", "rmqd.yaml")
        assert ended.code == ExitCode.UNAVAILABLE
        assert f"name server {peer.address}: is not a name server, but probably a broker" in ended.out


async def test_connect_names_missing_permissions_without_a_pull() -> None:
    """It sends requests that need the permissions of a pull: an unlock for ACL 2.0, and two queries for ACL 1.0."""
    async with Peer() as peer:
        group_keys = "{subscriptions: {orders: '*'}, handler: {plugin: log}}"
        Path("rmqd.yaml").write_text(f"nameserver: {peer.address}\ngroups: {{mailer: {group_keys}}}\n")
        broker = BrokerData("DefaultCluster", "broker-a", {0: peer.address})
        peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes({"orders": route_of({"broker-a": peer.address})}))
        peer.on(RequestCode.GET_BROKER_CLUSTER_INFO, Reply(body=ClusterInfo({"broker-a": broker}, {}).to_json()))
        table = SubscriptionGroupWrapper({"mailer": SubscriptionGroupConfig(group_name="mailer")})
        peer.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Reply(body=table.to_json()))
        peer.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, Reply(ResponseCode.CONSUMER_NOT_ONLINE, "none"))
        topic, group = "Topic:orders", "Group:mailer"
        needed = {
            RequestCode.GET_MIN_OFFSET: (topic, "Get"),
            RequestCode.UNLOCK_BATCH_MQ: (group, "Sub"),
            RequestCode.QUERY_MESSAGE: (topic, "Sub"),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: (group, "Sub"),
        }
        for code, (resource, _) in needed.items():
            remark = f"User:u has no permission to access {resource} from 10.0.0.9, no matched policies."
            peer.on(code, Reply(ResponseCode.NO_PERMISSION, remark))
        ended = await asyncio.to_thread(rmqd, "check", "--connect", "-c", "rmqd.yaml")
        assert ended.code == ExitCode.FAILURE
        for code, (resource, action) in needed.items():
            (line,) = (one for one in ended.out.splitlines() if f"refuses {code.name} " in one)
            permit = f"needs the action {action}: `mqadmin createAcl -s User:USER -r {resource} -a Sub,Get"
            assert permit in line
        assert peer.got(RequestCode.PULL_MESSAGE) == []  # a pull under a group's name can erase a pending offset reset
        unlock = json.loads(peer.got(RequestCode.UNLOCK_BATCH_MQ)[0].body)
        queue = {"topic": "orders", "brokerName": "broker-a", "queueId": -1}  # no member can have a lock on it
        assert (unlock["consumerGroup"], unlock["mqSet"]) == ("mailer", [queue])


def test_version_and_no_arguments() -> None:
    assert rmqd("--version").out == f"rmqd {__version__} (core: {core_name()})\n"
    assert "Usage: rmqd" in rmqd().err


# --- handlers


def test_installed_handlers_are_listed_with_their_options() -> None:
    result = rmqd("handlers")
    assert result.code == 0
    blocks = {block.split()[0]: block for block in result.out.split("\n\n")}
    assert {"exec", "jsonl", "log"} <= blocks.keys()
    assert "rmqd_handlers.jsonl:JsonLines" in blocks["jsonl"]
    assert "  path (string, required): " in blocks["jsonl"]


def test_spark_commands_without_pyarrow_print_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, also if the check passes but the import fails, and for a group that does not run on Spark."""
    pytest.importorskip("pyspark", reason="the texts name what is missing, and here more is: make spark")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    on_spark = GOOD.replace("    handler:", "    engine: spark\n    handler:")
    archive = GOOD.replace("plugin: log", "plugin: parquet, options: {path: archive}")
    place = "rmqd.yaml:5:13: groups.mailer.engine: spark needs pyarrow, which is not installed; use local, or"
    cases = [("run", on_spark, 78, place), ("compact", archive, 1, "rmqd spark compact: pyarrow is not installed;")]
    for command, text, code, said in (*cases, ("run", on_spark, 1, "rmqd spark run: pyarrow is not installed;")):
        Path("rmqd.yaml").write_text(text)
        result = rmqd("spark", command, "mailer", "--config", "rmqd.yaml")
        assert (result.code, result.err) == (code, f"{said} run {install_command('spark')}\n")
        if command == "compact":
            as_json = rmqd("spark", command, "mailer", "--config", "rmqd.yaml", "-o", "json")
            assert (as_json.code, as_json.json()["error"]) == (code, result.err.strip())
        monkeypatch.setattr(
            "rmqd.config.rules.spark_rules.SPARK_PACKAGES", ()
        )  # the check passes, but the import fails
