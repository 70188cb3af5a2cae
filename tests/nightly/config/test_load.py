"""The sources of a configuration: files, folders, `--set`, `${...}`.

The core of these tests is in tests/config/test_load.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqd.config.load import load_config
from rmqd.errors import ConfigError
from rmqd.plugins.model_options import load_runnable, options_of_group
from tests.config.configuration import load, problems
from tests.config.test_load import GROUP, ROOT, WHOLE, errors, folder, write

__all__ = ["folder"]


def test_a_missing_file_is_reported_with_the_option_or_variable_that_names_it() -> None:
    write("config/rmqd.yaml", ROOT)
    with pytest.raises(ConfigError, match=r"^absent\.yaml: no such file or folder, named by --config$"):
        load_runnable(Path("absent.yaml"), environ={})
    with pytest.raises(ConfigError, match=r"^absent\.yaml: no such file or folder, named by \$RMQD_CONFIG$"):
        load_runnable(None, environ={"RMQD_CONFIG": "absent.yaml"})


def test_a_root_file_without_groups_reads_them_from_the_folder() -> None:
    write("conf/rmqd.yaml", f"{ROOT}groups:\n")
    write("conf/groups/b.yaml", GROUP)
    write("conf/groups/a.yaml", GROUP)
    write("conf/groups/.a.yaml.swp", "half a fi")
    assert list(load_runnable(Path("conf")).groups) == ["a", "b"]


def test_a_file_with_another_name_ignores_the_folder_of_groups() -> None:
    write("conf/other.yaml", WHOLE)
    write("conf/groups/more.yaml", GROUP)
    assert list(load_runnable(Path("conf/other.yaml")).groups) == ["mailer"]


def test_keys_are_not_reported_as_missing_if_their_file_is_broken() -> None:
    write("conf/rmqd.yaml", "nameserver: [a:1\n")
    write("conf/groups/a.yaml", "subscriptions: {}\nhandler: {plugin: log}\npull_batch_size: 0\n")
    assert [error.split(": ")[0] for error in errors("conf")] == ["conf/rmqd.yaml:2:1", "conf/groups/a.yaml:3:18"]


def test_a_folder_without_a_root_file_is_reported() -> None:
    write("conf/groups/a.yaml", GROUP)
    assert errors("conf") == ["conf/rmqd.yaml:1:1: the file cannot be read: No such file or directory"]


def test_invalid_utf_8_is_reported_with_its_place() -> None:
    Path("latin.yaml").write_bytes("nameserver: a:1\nstate_dir: /größe\n".encode("latin-1"))
    assert errors("latin.yaml") == ["latin.yaml:2:15: this is not UTF-8; expected text in UTF-8"]


def test_a_byte_order_mark_is_ignored() -> None:
    Path("bom.yaml").write_bytes(b"\xef\xbb\xbf" + WHOLE.encode())
    assert list(load_runnable(Path("bom.yaml")).groups) == ["mailer"]


def test_automatic_concurrency_has_a_maximum() -> None:
    """Automatic concurrency has no effect with processes."""
    auto = ["groups.mailer.handler.concurrency=auto"]
    options = options_of_group(load(WHOLE, auto).groups["mailer"], "mailer", "")
    assert (options.concurrency, options.auto_concurrency) == (256, True)
    options = options_of_group(
        load(WHOLE, [*auto, "groups.mailer.handler.max_concurrency=30"]).groups["mailer"], "m", ""
    )
    assert (options.concurrency, options.auto_concurrency) == (30, True)
    (problem,) = problems(WHOLE, [*auto, "groups.mailer.handler.processes=2"])
    assert "handler.concurrency: auto has no effect with processes" in problem


def test_names_that_yaml_1_1_would_convert_stay_text() -> None:
    config = load(f"{ROOT}groups:\n  on:\n    subscriptions: {{no: NO, 1e3: '*'}}\n    handler: {{plugin: log}}\n")
    assert {topic: one.expression for topic, one in config.groups["on"].subscriptions.items()} == {
        "no": "NO",
        "1e3": "*",
    }


IN_PS = "all users can see this secret in `ps`; expected '${NAME}', '${file:PATH}', or the configuration file"


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


def test_a_problem_of_an_override_names_the_option_set(subtests: pytest.Subtests) -> None:
    for override, expected in OVERRIDES:
        with subtests.test(override=override):
            assert f"--set {override.partition('=')[0]}: {expected}" in problems(WHOLE, [override])


def test_a_doubled_dollar_makes_a_reference_literal() -> None:
    text = f"{ROOT}client: {{unit_name: '$${{HOME}} costs 5$ or $$', tls: {{server_name: '$${{A}}${{B}}'}}}}"
    config = load(text, environ={"B": "b"})
    assert config.client.unit_name == "${HOME} costs 5$ or $$"
    assert config.client.tls.server_name == "${A}b"


def test_files_that_cannot_be_substituted_are_reported() -> None:
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


def test_text_that_is_not_utf8_is_refused_from_every_source() -> None:
    """Python keeps such bytes of a command line or a variable as lone surrogates, which cannot be encoded."""
    told = "is not UTF-8; expected text"
    assert problems(WHOLE, ["groups.mailer.handler.options.level=\udcff"]) == [
        "--set groups.mailer.handler.options.level: this is not UTF-8; expected text in UTF-8"
    ]
    assert problems(WHOLE, ["log.\udcff=info"]) == ["--set log. : this is not UTF-8; expected text in UTF-8"]
    assert problems(f"{WHOLE}state_dir: ${{ODD}}\n", environ={"ODD": "/\udcff"}) == [
        f"test.yaml:4:12: state_dir: the environment variable ODD {told}"
    ]


def test_a_nul_character_is_refused() -> None:
    """YAML can contain it, but file names cannot."""
    (in_reference,) = problems(f'{ROOT}state_dir: "${{file:a\\0b}}"\n')
    assert "cannot be read: its name has a NUL character; expected a readable file" in in_reference
    assert problems(f'{WHOLE}state_dir: "a\\0b"\nhttp: {{token_file: "a\\0b", token: "\\0"}}\n', to_run=True) == [
        "test.yaml:4:12: state_dir: 'a\\x00b' has a NUL character; expected a folder, with ${HOME} instead of ~",
        "test.yaml:5:20: http.token_file: 'a\\x00b' has a NUL character; expected text",
        "test.yaml:5:35: http.token: the value has a NUL character; expected text",
    ]


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """A read could wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "rmqd.yaml"
    path.write_text(f"nameserver: ${{file:{tmp_path}/pipe}}\n")
    with pytest.raises(ConfigError, match="cannot be read: it is not a regular file"):
        load_config(path)
    path.write_text(f"nameserver: a:1\nhttp: {{token_file: {tmp_path}/pipe}}\n")
    with pytest.raises(ConfigError, match="it is not a regular file"):
        load_runnable(path)


def test_only_the_first_100_unknown_keys_get_suggestions(tmp_path: Path) -> None:
    """All are reported. A suggestion needs a comparison with every known key."""
    path = tmp_path / "rmqd.yaml"
    path.write_text("nameserver: a:1\n" + "".join(f"nameservr{number}: 1\n" for number in range(300)))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    problems = [str(problem) for problem in caught.value.problems]
    assert len(problems) == 300
    assert sum("did you mean nameserver?" in problem for problem in problems) == 100
    assert problems[-1].endswith("nameservr299: unknown key")
