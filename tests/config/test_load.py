"""Where a configuration comes from: files, folders, `--set`, `${...}`."""

from __future__ import annotations

import os
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


# --- finding it


def test_the_option_wins_over_the_variable_and_both_over_the_default_places() -> None:
    write("option.yaml", ROOT)
    write("variable.yaml", ROOT)
    write("config/rmqd.yaml", ROOT)
    environ = {"RMQD_CONFIG": "variable.yaml"}
    assert find_config(Path("option.yaml"), environ) == Path("option.yaml")
    assert find_config(None, environ) == Path("variable.yaml")
    assert find_config(None, {}) == Path("config/rmqd.yaml")


def test_a_file_that_is_named_and_not_there_is_told_with_who_named_it() -> None:
    write("config/rmqd.yaml", ROOT)
    with pytest.raises(ConfigError, match=r"^absent\.yaml: no such file or folder, named by --config$"):
        load_runnable(Path("absent.yaml"), environ={})
    with pytest.raises(ConfigError, match=r"^absent\.yaml: no such file or folder, named by \$RMQD_CONFIG$"):
        load_runnable(None, environ={"RMQD_CONFIG": "absent.yaml"})


@pytest.mark.skipif(Path("/etc/rmqd/rmqd.yaml").exists(), reason="this machine has a configuration of rmqd")
def test_without_any_configuration_the_places_are_named_that_were_looked_at() -> None:
    with pytest.raises(ConfigError, match=r"neither config/rmqd\.yaml nor /etc/rmqd/rmqd\.yaml exists"):
        load_runnable(None, environ={})


def test_the_environment_names_the_name_servers_if_the_configuration_does_not() -> None:
    """As for Java's client, which separates several by `;`."""
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


def test_a_root_without_groups_takes_them_from_the_folder() -> None:
    write("conf/rmqd.yaml", f"{ROOT}groups:\n")
    write("conf/groups/b.yaml", GROUP)
    write("conf/groups/a.yaml", GROUP)
    write("conf/groups/.a.yaml.swp", "half a fi")
    assert list(load_runnable(Path("conf")).groups) == ["a", "b"]


def test_a_file_of_another_name_stands_alone() -> None:
    write("conf/other.yaml", WHOLE)
    write("conf/groups/more.yaml", GROUP)
    assert list(load_runnable(Path("conf/other.yaml")).groups) == ["mailer"]


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


def test_what_a_broken_file_may_have_held_is_not_called_missing() -> None:
    write("conf/rmqd.yaml", "nameserver: [a:1\n")
    write("conf/groups/a.yaml", "subscriptions: {}\nhandler: {plugin: log}\npull_batch_size: 0\n")
    assert [error.split(": ")[0] for error in errors("conf")] == ["conf/rmqd.yaml:2:1", "conf/groups/a.yaml:3:18"]


def test_a_folder_without_a_root_file_is_told() -> None:
    write("conf/groups/a.yaml", GROUP)
    assert errors("conf") == ["conf/rmqd.yaml:1:1: the file cannot be read: No such file or directory"]


def test_what_is_no_utf_8_is_told_with_its_place() -> None:
    Path("latin.yaml").write_bytes("nameserver: a:1\nstate_dir: /größe\n".encode("latin-1"))
    assert errors("latin.yaml") == ["latin.yaml:2:15: this is not UTF-8; expected text in UTF-8"]


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    Path("bom.yaml").write_bytes(b"\xef\xbb\xbf" + WHOLE.encode())
    assert list(load_runnable(Path("bom.yaml")).groups) == ["mailer"]


# --- YAML


def test_anchors_and_merge_keys_save_writing() -> None:
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


def test_a_concurrency_that_is_found_out_is_told_its_most() -> None:
    """With processes it would be of no use."""
    auto = ["groups.mailer.handler.concurrency=auto"]
    options = options_of_group(load(WHOLE, auto).groups["mailer"], "mailer", "")
    assert (options.concurrency, options.auto_concurrency) == (256, True)
    options = options_of_group(
        load(WHOLE, [*auto, "groups.mailer.handler.max_concurrency=30"]).groups["mailer"], "m", ""
    )
    assert (options.concurrency, options.auto_concurrency) == (30, True)
    (problem,) = problems(WHOLE, [*auto, "groups.mailer.handler.processes=2"])
    assert "handler.concurrency: auto has no effect with processes" in problem


def test_names_that_yaml_1_1_would_change_stay_as_they_are() -> None:
    config = load(f"{ROOT}groups:\n  on:\n    subscriptions: {{no: NO, 1e3: '*'}}\n    handler: {{plugin: log}}\n")
    assert {topic: one.expression for topic, one in config.groups["on"].subscriptions.items()} == {
        "no": "NO",
        "1e3": "*",
    }


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


def test_set_mends_what_the_file_has_wrong() -> None:
    assert load("nameserver: ${UNSET}\n", ["nameserver=a:1"]).nameserver == ("a:1",)


IN_PS = "all users can see it in `ps`; expected '${NAME}', '${file:PATH}', or the configuration file"
FORM = "expected KEY=VALUE with a key such as log.level or groups.mailer.pull_batch_size"


OVERRIDES = [
    (
        "groups.mailer.pull_batch_size=0",
        "groups.mailer.pull_batch_size: 0 is out of range; expected a whole number from 1 to 1024",
    ),
    (
        "nameserver.x=1",
        "nameserver: cannot set nameserver.x, because this is not a mapping; expected a key inside a mapping",
    ),
    ("log.levle=info", "log.levle: unknown key; did you mean level?"),
    ("log", f"not valid; {FORM}"),
    ("log..level=info", f"not valid; {FORM}"),
    (
        "groups.other.handler.plugin=log",
        'groups.other.subscriptions: missing; expected a mapping of topics to tag expressions, such as orders: "*"',
    ),
    (
        "nameserver=[b:2",
        "nameserver: this is not valid YAML: while parsing a flow sequence, did not find expected ',' or ']'",
    ),
    ("client.secret_key=123", "client.secret_key: the value is not text; expected text, in quotes"),
    ("client.secret_key=s3cret", f"client.secret_key: {IN_PS}"),
    ("client={access_key: '${KEY:-a}', secret_key: s3cret}", f"client.secret_key: {IN_PS}"),
    ("client.tls={key_password: s3cret}", f"client.tls.key_password: {IN_PS}"),
    ("http.token=s3cret", f"http.token: {IN_PS}"),
    (
        "state_dir=${UNSET}",
        "state_dir: the environment variable UNSET is not set; set it, or add a default with ${UNSET:-default}",
    ),
]


def test_a_problem_of_set_is_named_as_such(subtests: pytest.Subtests) -> None:
    for override, expected in OVERRIDES:
        with subtests.test(override=override):
            assert f"--set {override.partition('=')[0]}: {expected}" in problems(WHOLE, [override])


def test_set_takes_a_secret_by_the_name_of_where_it_is() -> None:
    write("secret", "s3cret\n")
    given = ["client.access_key=${KEY}", "client.secret_key=${file:secret}", "client.security_token="]
    options = load(WHOLE, given, environ={"KEY": "somebody"}).client_options()
    assert (options.access_key, options.secret_key, options.security_token) == ("somebody", "s3cret", "")


# --- ${...}


def test_variables_and_files_are_replaced_in_values() -> None:
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


def test_what_is_replaced_may_be_a_number_a_truth_value_a_duration_or_a_size() -> None:
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


def test_what_is_replaced_cannot_become_yaml_and_is_not_replaced_again() -> None:
    write("evil", "x, level: loud}\nlog: ${file:evil}")
    text = f"{ROOT}client: {{unit_name: '${{file:evil}}', tls: {{server_name: '${{N}}'}}}}"
    config = load(text, environ={"N": "${M}", "M": "no"})
    assert config.client.unit_name == "x, level: loud}\nlog: ${file:evil}"
    assert config.client.tls.server_name == "${M}"
    assert config.log.level == "info"


def test_a_doubled_dollar_keeps_a_reference_as_it_is() -> None:
    text = f"{ROOT}client: {{unit_name: '$${{HOME}} costs 5$ or $$', tls: {{server_name: '$${{A}}${{B}}'}}}}"
    config = load(text, environ={"B": "b"})
    assert config.client.unit_name == "${HOME} costs 5$ or $$"
    assert config.client.tls.server_name == "${A}b"


def test_a_replaced_value_is_not_shown_in_an_error() -> None:
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


def test_files_that_cannot_be_replaced_are_told() -> None:
    write("binary", "")
    Path("binary").write_bytes(b"\xff\xfe")
    write("long", "x" * (1 << 20) + "x")
    for name, reason in {
        "binary": "is not UTF-8; expected text",
        "long": "is longer than 1MiB; expected a file with one value",
        ".": "cannot be read: Is a directory; expected a readable file",
    }.items():
        (found,) = problems(f"{ROOT}state_dir: ${{file:{name}}}\n")
        assert found == f"test.yaml:2:12: state_dir: the file {Path(name).absolute()} {reason}"


def test_text_that_is_not_utf8_is_refused_wherever_it_comes_from() -> None:
    """Python keeps such bytes of a command line or a variable as halves of characters, which nothing can write."""
    told = "is not UTF-8; expected text"
    assert problems(WHOLE, ["groups.mailer.handler.options.level=\udcff"]) == [
        "--set groups.mailer.handler.options.level: this is not UTF-8; expected text in UTF-8"
    ]
    assert problems(WHOLE, ["log.\udcff=info"]) == ["--set log. : this is not UTF-8; expected text in UTF-8"]
    assert problems(f"{WHOLE}state_dir: ${{ODD}}\n", environ={"ODD": "/\udcff"}) == [
        f"test.yaml:4:12: state_dir: the environment variable ODD {told}"
    ]


def test_a_nul_character_is_refused() -> None:
    """YAML can write it, and no file can have it in its name."""
    (in_reference,) = problems(f'{ROOT}state_dir: "${{file:a\\0b}}"\n')
    assert "cannot be read: its name has a NUL character; expected a readable file" in in_reference
    assert problems(f'{WHOLE}state_dir: "a\\0b"\nhttp: {{token_file: "a\\0b", token: "\\0"}}\n', to_run=True) == [
        "test.yaml:4:12: state_dir: 'a\\x00b' has a NUL character; expected a folder",
        "test.yaml:5:20: http.token_file: 'a\\x00b' has a NUL character; expected text",
        "test.yaml:5:35: http.token: the value has a NUL character; expected text",
    ]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody may ever write to it."""
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "rmqd.yaml"
    path.write_text(f"nameserver: ${{file:{tmp_path}/pipe}}\n")
    with pytest.raises(ConfigError, match="cannot be read: it is not a regular file"):
        load_config(path)
    path.write_text(f"nameserver: a:1\nhttp: {{token_file: {tmp_path}/pipe}}\n")
    with pytest.raises(ConfigError, match="it is not a regular file"):
        load_runnable(path)


def test_of_very_many_unknown_keys_the_first_are_explained(tmp_path: Path) -> None:
    """And all are told: what was meant takes a look at every key that there is."""
    path = tmp_path / "rmqd.yaml"
    path.write_text("nameserver: a:1\n" + "".join(f"nameservr{number}: 1\n" for number in range(300)))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    problems = [str(problem) for problem in caught.value.problems]
    assert len(problems) == 300
    assert sum("did you mean nameserver?" in problem for problem in problems) == 100
    assert problems[-1].endswith("nameservr299: unknown key")


def test_a_handlers_password_does_not_stand_on_the_command_line(tmp_path: Path) -> None:
    """As any other secret."""
    path = tmp_path / "rmqd.yaml"
    path.write_text("nameserver: a:1\n")
    for handler in ("handler", "handler.canary"):
        with pytest.raises(ConfigError, match="db_password: all users can see it in `ps`"):
            load_config(path, [f"groups.g.{handler}.options.db_password=abc"])
