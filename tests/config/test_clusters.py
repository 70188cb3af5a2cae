"""Several clusters in one configuration: the cluster of a group, and the client settings of each cluster."""

from __future__ import annotations

import pytest

from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.allocate import AllocateByConfig
from rmqd.plugins.model_options import consumer_options
from rmqd.wire.message_queue import MessageQueue
from tests.config.configuration import load, problems

pytestmark = pytest.mark.usefixtures("in_empty_folder")

TOKYO = "clusters: {tokyo: {nameserver: 't:1', client: {instance_name: there, access_key: a, secret_key: hidden}}}\n"
BOTH = "clusters: {tokyo: {nameserver: 't:1'}, osaka: {nameserver_url: 'http://o/rocketmq'}}\n"
GROUP = "groups: {mailer: {subscriptions: {orders: '*'}, handler: {plugin: log}}}\n"
IN_TOKYO = GROUP.replace("{sub", "{cluster: tokyo, sub")
IN_PARIS = GROUP.replace("{sub", "{cluster: paris, sub")


@pytest.fixture
def in_empty_folder(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))


def server_of(config: RootConfig) -> str:
    """The name of the group's cluster, and its name servers."""
    options = config.cluster_of("mailer").client_options()
    return f"{config.cluster_name('mailer')} {';'.join(options.nameservers) or options.nameserver_url}"


CLUSTERS = {
    "the top level": ("nameserver: a:1\n" + GROUP, "default a:1"),
    "the top level, beside others": ("nameserver: a:1\n" + BOTH + GROUP, "default a:1"),
    "the one that it names": ("nameserver: a:1\n" + BOTH + IN_TOKYO, "tokyo t:1"),
    "the one that it names, without a default": (BOTH + IN_TOKYO, "tokyo t:1"),
    "the only one": (TOKYO + GROUP, "tokyo t:1"),
    "the one called default": (BOTH.replace("osaka", "default") + GROUP, "default http://o/rocketmq"),
}


def test_a_group_uses_the_cluster_that_it_names_or_the_default_cluster(subtests: pytest.Subtests) -> None:
    for name, (text, expected) in CLUSTERS.items():
        with subtests.test(name):
            assert server_of(load(text)) == expected


def test_a_named_cluster_does_not_get_the_client_settings_of_the_top_level() -> None:
    """The access key of one cluster must not be sent to the brokers of another cluster."""
    config = load("nameserver: a:1\nclient: {access_key: x, secret_key: y, namespace: shop}\n" + TOKYO + IN_TOKYO)
    tokyo = config.cluster_of("mailer").client_options()
    assert (tokyo.instance_name, tokyo.access_key, tokyo.secret_key, tokyo.namespace) == ("there", "a", "hidden", "")
    assert "hidden" not in repr(config)


NO_NAME_SERVER = 'nameserver: missing; expected host:port, "host:port;host:port", a list, or nameserver_url instead'
NOT_IN_THE_ENVIRONMENT = NO_NAME_SERVER.replace("or nameserver_url instead", "nameserver_url, or $NAMESRV_ADDR")
NOT_IN_THE_ENVIRONMENT += " in the environment"


WRONG = {
    "no cluster is the default": (
        BOTH + GROUP,
        "2:10: groups.mailer.cluster: required, because there are several clusters; expected one of tokyo, osaka; or "
        "rename the default cluster to default",
    ),
    "no such cluster": (
        "nameserver: a:1\n" + BOTH + IN_PARIS,
        "3:28: groups.mailer.cluster: paris: unknown cluster; expected default, tokyo, osaka",
    ),
    "two are called default": (
        "nameserver: a:1\nclusters: {default: {nameserver: 't:1'}}\n" + GROUP,
        "2:12: clusters.default: the cluster of nameserver at the top level is called default; use another name here, "
        "or remove that nameserver",
    ),
    "nowhere to be found": (
        "nameserver: a:1\nclusters: {tokyo: {client: {unit_name: u}}}\n" + GROUP,
        f"2:12: clusters.tokyo.{NO_NAME_SERVER}",
    ),
    "client settings of no cluster": ("client: {unit_name: u}\n" + TOKYO + GROUP, f"1:1: {NOT_IN_THE_ENVIRONMENT}"),
    "a name that is no folder's": (
        "clusters: {../up: {nameserver: 't:1'}}\n" + GROUP,
        "1:12: clusters.../up: the name '../up' is not valid; expected letters a-z and A-Z, digits, - and _",
    ),
    "half of its keys": (
        "clusters: {tokyo: {nameserver: 't:1', client: {access_key: a}}}\n" + GROUP,
        "1:39: clusters.tokyo.client.secret_key: required by access_key; expected both or neither",
    ),
    "a namespace that cannot be part of a name": (
        "nameserver: a:1\nclient: {namespace: no.dots}\n" + GROUP,
        "2:21: client.namespace: 'no.dots' is not valid; expected letters a-z and A-Z, digits, | - and _",
    ),
    "a namespace that would end too early": (
        "nameserver: a:1\nclient: {namespace: a%b}\n" + GROUP,
        "2:21: client.namespace: 'a%b' is not valid; expected letters a-z and A-Z, digits, | - and _",
    ),
}


def test_problems_of_a_cluster_are_reported_with_their_place(subtests: pytest.Subtests) -> None:
    for name, (text, expected) in WRONG.items():
        with subtests.test(name):
            assert problems(text) == [f"test.yaml:{expected}"]


def test_the_engine_gets_names_with_the_namespace() -> None:
    text = """\
nameserver: a:1
client: {namespace: shop}
groups:
  mailer:
    subscriptions: {orders: paid}
    handler: {plugin: log}
    allocate_strategy: by_config
    allocate_queues:
      - {topic: orders, broker_name: b, queue_id: 0}
      - {topic: "%RETRY%mailer", broker_name: b, queue_id: 0}
"""
    options = consumer_options(load(text), "mailer")
    assert (options.group, list(options.subscriptions), options.namespace) == ("shop%mailer", ["shop%orders"], "shop")
    own = AllocateByConfig((MessageQueue("shop%orders", "b", 0), MessageQueue("%RETRY%shop%mailer", "b", 0)))
    assert options.allocate_strategy.function == own
