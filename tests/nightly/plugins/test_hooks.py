"""Hooks from entry points: a broken hook fails `rmqd run` and `rmqd check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqd.errors import ConfigError
from rmqd.plugins.strategies import load_hooks
from tests.cli.command import rmqd
from tests.plugins.test_hooks import Install, install

__all__ = ["install"]


def check_refused(*commands: tuple[str, ...], install: Install, folder: Path) -> None:
    """Run commands of rmqd with a broken hook, and expect exit code 78 before any connection."""
    install(broken="nowhere:Hook")
    path = folder / "rmqd.yaml"
    path.write_text(
        "nameserver: 127.0.0.1:1\nhttp: {listen: '127.0.0.1:0'}\n"
        "groups: {mailer: {subscriptions: {orders: '*'}, handler: {plugin: log}}}\n"
    )
    for command in commands:
        ended = rmqd(*command, "--config", path, python_path=folder)
        assert ended.code == 78, ended.err
        assert "rmqd.hooks: the hook broken of shop-tools: nowhere:Hook" in ended.err


@pytest.mark.process
def test_rmqd_run_refuses_to_start_with_a_broken_hook(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = ("run", "--workers", "1"), ("run", "--workers", "2"), ("check",)
    check_refused(*commands, install=install, folder=tmp_path)


def test_two_distributions_may_have_a_hook_with_the_same_name(install: Install) -> None:
    install("shop-tools", same="shop_hooks:Tracing")
    install("other-tools", same="shop_hooks:Choosy")
    assert sorted(hook.name for hook in load_hooks()) == ["same (other-tools)", "same (shop-tools)"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere:Hook", "nowhere:Hook of shop-tools cannot be imported: ModuleNotFoundError"),
        ("shop_hooks:Missing", "cannot be imported: AttributeError"),
        ("shop_hooks:Nothing", "shop_hooks:Nothing is not a hook; expected an object, or a class without arguments"),
        ("shop_hooks:TakesMore", "shop_hooks:TakesMore cannot be created: TypeError"),
        ("shop_hooks:Breaks", "shop_hooks:Breaks cannot be created: OSError: no such collector"),
        ("shop_hooks:Asynchronous", "has a before_batch that is not a plain method; expected def before_batch"),
        ("shop_hooks:Generator", "has a wants that is not a plain method"),
        ("shop_hooks:NoMethod", "has a wants that is not a plain method"),
    ],
)
def test_the_error_for_an_unusable_hook_names_its_distribution(install: Install, target: str, said: str) -> None:
    install(tracing="shop_hooks:Tracing", broken=target)
    with pytest.raises(ConfigError) as refused:
        load_hooks()
    (problem,) = refused.value.problems
    assert str(problem).startswith("rmqd.hooks: the hook broken of shop-tools: ")
    assert said in str(problem)


@pytest.mark.process
def test_rmqd_check_names_the_hooks(install: Install, tmp_path: Path) -> None:
    install(tracing="shop_hooks:Tracing")
    path = tmp_path / "rmqd.yaml"
    path.write_text(
        "nameserver: 127.0.0.1:1\ngroups:\n  mailer: {subscriptions: {orders: '*'}, handler: {plugin: log}}\n"
        "  audit: {subscriptions: {orders: '*'}, handler: {plugin: log}, hooks: none}\n"
    )
    ended = rmqd("check", "--config", path, python_path=tmp_path)
    assert ended.code == 0, ended.err
    assert "OK           hooks of audit: none\nOK           hooks of every other group: tracing" in ended.out
