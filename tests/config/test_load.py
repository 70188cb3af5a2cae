"""The sources of a configuration: files, folders, `--set`, `${...}`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqd.config.load import load_config
from rmqd.config.model.root_model import RootConfig
from rmqd.config.reading.config_source import find_config
from rmqd.errors import ConfigError
from rmqd.plugins.model_options import load_runnable, options_of_group
from tests.config.configuration import load, problems

ROOT = "nameserver: a:1\n"
GROUP = 'subscriptions: {orders: "*"}\nhandler: {plugin: log}\n'
WHOLE = f"{ROOT}groups:\n  mailer: {{subscriptions: {{orders: '*'}}, handler: {{plugin: log}}}}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def errors(path: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(Path(path))
    return [str(problem) for problem in caught.value.problems]


# --- search


def test_the_option_wins_over_the_variable_and_both_over_the_default_places() -> None:
    write("option.yaml", ROOT)
    write("variable.yaml", ROOT)
    write("config/rmqd.yaml", ROOT)
    environ = {"RMQD_CONFIG": "variable.yaml"}
    assert find_config(Path("option.yaml"), environ) == Path("option.yaml")
    assert find_config(None, environ) == Path("variable.yaml")
    assert find_config(None, {}) == Path("config/rmqd.yaml")


@pytest.mark.skipif(Path("/etc/rmqd/rmqd.yaml").exists(), reason="this machine has a configuration of rmqd")
def test_the_error_for_a_missing_configuration_names_the_default_places() -> None:
    with pytest.raises(ConfigError, match=r"neither config/rmqd\.yaml nor /etc/rmqd/rmqd\.yaml exists"):
        load_runnable(None, environ={})


def test_the_environment_names_the_name_servers_if_the_configuration_does_not() -> None:
    """Java's client reads the same variable, with `;` between addresses."""
    given, bare = {"NAMESRV_ADDR": "a:1;b:2"}, WHOLE.removeprefix(ROOT)
    assert load(bare, environ=given).nameserver == ("a:1", "b:2")
    assert load("nameserver: c:3\n" + bare, environ=given).nameserver == ("c:3",)
    assert load("nameserver_url: 'http://mq'\n" + bare, environ=given).nameserver == ()
    assert load("clusters: {tokyo: {nameserver: 't:1'}}\n" + bare, environ=given).default_cluster == "tokyo"
    [told] = problems(bare, environ={"NAMESRV_ADDR": "here"})
    assert told.startswith("$NAMESRV_ADDR: nameserver: 'here' is not host:port; expected ")


# --- a folder


@pytest.mark.parametrize("path", ["conf", "conf/rmqd.yaml"])
@pytest.mark.parametrize(
    "text",
    [
        GROUP,
        "mailer:\n  subscriptions: {orders: '*'}\n  handler: {plugin: log}\n",
        "groups:\n  mailer:\n    subscriptions: {orders: '*'}\n    handler: {plugin: log}\n",
    ],
    ids=["keys of one group", "groups by name", "groups:"],
)
def test_a_folder_holds_the_root_and_a_file_for_each_group(path: str, text: str) -> None:
    write("conf/rmqd.yaml", f"{ROOT}groups: {{first: {{subscriptions: {{a: '*'}}, handler: {{plugin: log}}}}}}\n")
    write("conf/groups/mailer.yaml", text)
    assert list(load_runnable(Path(path)).groups) == ["first", "mailer"]


def test_problems_of_a_folder_name_the_file_that_has_them() -> None:
    write("conf/rmqd.yaml", f"{ROOT}log: {{level: loud}}\n")
    write("conf/groups/a.yaml", f"{GROUP}pull_batch_size: 0\n")
    write("conf/groups/b.yml", GROUP)
    write("conf/groups/c.yaml", f"groups:\n  a:\n    {GROUP.replace(chr(10), chr(10) + '    ')}\nlog: {{}}\n")
    write("conf/groups/d.yaml", "- mailer\n")
    write("conf/groups/e.yaml", "groups: [mailer]\n")
    write("conf/groups/f.yaml", "")
    assert [error.partition("; ")[0] for error in errors("conf")] == [
        "conf/rmqd.yaml:2:14: log.level: 'loud' is not a choice",
        "conf/groups/a.yaml:3:18: groups.a.pull_batch_size: 0 is out of range",
        "conf/groups/b.yml:1:1: only *.yaml files are read from groups/",
        "conf/groups/c.yaml:2:3: groups.a: duplicate group, first defined at conf/groups/a.yaml:1:1",
        "conf/groups/c.yaml:6:1: log: this key is not allowed in a group file",
        "conf/groups/d.yaml:1:1: the file contains a list",
        "conf/groups/e.yaml:1:9: groups: not a mapping",
    ]


# --- YAML


def test_anchors_and_merge_keys_are_supported() -> None:
    config = load(
        f"""{ROOT}
groups:
  a: &a
    subscriptions: {{orders: "*"}}
    handler: {{plugin: log}}
    pull_batch_size: 5
  b:
    <<: *a
    pull_batch_size: 6
""",
        ["groups.a.handler.concurrency=3"],
    )
    assert [config.groups[name].pull_batch_size for name in "ab"] == [5, 6]
    assert [options_of_group(config.groups[name], name, "").concurrency for name in "ab"] == [3, 20]


# --- --set


def options_of(config: RootConfig) -> dict[str, object]:
    handler = config.groups["mailer"].handler
    assert handler is not None
    return handler.options


def test_set_overrides_values_and_adds_missing_ones() -> None:
    overrides = [
        "nameserver=[b:2, c:3]",
        "log.level=debug",
        "groups.mailer.subscriptions.orders=*",
        "groups.mailer.subscriptions.refunds=a || b",
        "groups.mailer.handler.options={level: info, n: 1}",
        "groups.mailer.handler.options.text=",
        "groups.mailer.handler.options.url=http://a?b=c",
        "state_dir=/tmp/first",
        "state_dir=/tmp/last",
    ]
    config = load(WHOLE, overrides)
    assert config.nameserver == ("b:2", "c:3")
    assert config.log.level == "debug"
    assert config.state_dir == "/tmp/last"
    subscriptions = config.groups["mailer"].subscriptions
    assert {topic: one.expression for topic, one in subscriptions.items()} == {"orders": "*", "refunds": "a || b"}
    assert options_of(config) == {"level": "info", "n": 1, "text": "", "url": "http://a?b=c"}


def test_set_replaces_an_invalid_value_of_the_file() -> None:
    assert load("nameserver: ${UNSET}\n", ["nameserver=a:1"]).nameserver == ("a:1",)


def test_set_reads_secrets_from_variables_and_files() -> None:
    write("secret", "s3cret\n")
    given = ["client.access_key=${KEY}", "client.secret_key=${file:secret}", "client.security_token="]
    options = load(WHOLE, given, environ={"KEY": "somebody"}).client_options()
    assert (options.access_key, options.secret_key, options.security_token) == ("somebody", "s3cret", "")


# --- ${...}


def test_variables_and_files_are_substituted_in_values() -> None:
    write("secret", "s3cret\n")
    text = (
        ROOT
        + """
client:
  access_key: ${KEY}
  secret_key: "${file:secret}"
  unit_name: a-${UNIT:-none}-b
"""
    )
    options = load(text, environ={"KEY": "12345"}).client_options()
    assert (options.access_key, options.secret_key, options.unit_name) == ("12345", "s3cret", "a-none-b")
    assert load(text, environ={"KEY": "1", "UNIT": ""}).client.unit_name == "a-none-b"
    assert load(text, environ={"KEY": "1", "UNIT": "u"}).client.unit_name == "a-u-b"


def test_substituted_values_may_be_numbers_booleans_durations_or_sizes() -> None:
    text = f"""{WHOLE}http: {{listen: "${{LISTEN}}"}}
client: {{vip_channel_enabled: "${{FLAG}}", max_frame_size: "${{SIZE}}", poll_name_server_interval: "${{TIME}}"}}
"""
    environ = {"LISTEN": "0.0.0.0:1", "FLAG": "true", "SIZE": "1MiB", "TIME": "7s", "N": "33", "S": "-1"}
    overrides = [
        "groups.mailer.pull_batch_size=${N}",
        "groups.mailer.pull_threshold_size_for_topic=${S}",
        "log.level=${LEVEL:-debug}",
    ]
    config = load(text, overrides, environ=environ)
    assert config.http.listen == "0.0.0.0:1"
    assert config.client.vip_channel_enabled is True
    assert config.client.max_frame_size_bytes == 1 << 20
    assert config.client.poll_name_server_interval_seconds == 7.0
    assert config.groups["mailer"].pull_batch_size == 33
    assert config.groups["mailer"].pull_threshold_size_for_topic_bytes == -1
    assert config.log.level == "debug"


def test_substituted_text_is_neither_parsed_as_yaml_nor_substituted_again() -> None:
    write("evil", "x, level: loud}\nlog: ${file:evil}")
    text = f"{ROOT}client: {{unit_name: '${{file:evil}}', tls: {{server_name: '${{N}}'}}}}"
    config = load(text, environ={"N": "${M}", "M": "no"})
    assert config.client.unit_name == "x, level: loud}\nlog: ${file:evil}"
    assert config.client.tls.server_name == "${M}"
    assert config.log.level == "info"


def test_a_substituted_value_is_not_shown_in_an_error() -> None:
    text = f"{WHOLE}log: {{level: '${{SECRET}}'}}\nhttp: {{listen: '${{SECRET}}'}}\nnameserver_url: '${{SECRET}}'\n"
    overrides = [
        *(f"groups.mailer.{key}=${{SECRET}}" for key in ("pull_batch_size", "consume_timeout", "auto_commit")),
        "groups.mailer.pull_threshold_size_for_queue=${SECRET}",
        "groups.mailer.consume_timestamp=${SECRET}",
        "client.max_frame_size=${SECRET}",
        "nameserver=${SECRET};x",
        "groups.mailer.subscriptions.orders=${SECRET}|b",
        "client.tls=${SECRET}",
    ]
    found = problems(text, overrides, environ={"SECRET": "hunter2"})
    assert len(found) == 12
    assert "hunter2" not in "".join(found)


def test_a_handlers_password_is_refused_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "rmqd.yaml"
    path.write_text("nameserver: a:1\n")
    for handler in ("handler", "handler.canary"):
        with pytest.raises(ConfigError, match="db_password: all users can see this secret in `ps`"):
            load_config(path, [f"groups.g.{handler}.options.db_password=abc"])
