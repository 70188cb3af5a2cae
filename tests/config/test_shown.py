"""The configuration as it is shown, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from rmqd.config.load import explicit_settings, hide_options, load_config, settings_without_secrets
from rmqd.runtime.plain_text import HIDDEN, hide_secrets

CONFIG = """
nameserver: 10.0.0.1:9876
client:
  access_key: AKEY
  secret_key: ${SECRET}
  tls: {enabled: true, key_password: KEYPASS}
http: {token: TOKEN}
groups:
  token-mailer:
    subscriptions: {orders-secret: "paid || refunded"}
    pull_interval: 50ms
    handler:
      plugin: log
      options:
        path: /var/orders
        dsn: postgres://shop:DBPASS@db/orders
        api_key: APIKEY
        webhook: "https://shop:HOOK@example.org/x?token=QUERY&page=2"
        url: ${DATABASE_URL}
        from_file: ${file:FILE}
        credentials: {user: ada, key: NESTED}
        command: [mail, --password, ARGUMENT, "--token=JOINED", --to, ada]
        header: "Authorization: Bearer BEARERVALUE"
        retries: 3
      canary: {plugin: log, share: 2.5%, options: {api_key: APIKEY}}
"""
SECRETS = (
    "AKEY SEKRET KEYPASS TOKEN DBPASS APIKEY HOOK QUERY ENVPASS FILEPASS NESTED ARGUMENT JOINED BEARERVALUE".split()
)


@pytest.fixture
def shown(tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration above with defaults, and with only the given keys."""
    (tmp_path / "secret").write_text("FILEPASS")
    path = tmp_path / "rmqd.yaml"
    path.write_text(CONFIG.replace("file:FILE", f"file:{tmp_path / 'secret'}"))
    config = load_config(path, environ={"SECRET": "SEKRET", "DATABASE_URL": "postgres://shop:ENVPASS@db"})
    return settings_without_secrets(config), explicit_settings(config)


def test_no_secret_is_shown(subtests: pytest.Subtests, shown: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Covers every place and every source of a secret."""
    for secret in SECRETS:
        with subtests.test(secret=secret):
            assert secret not in repr(shown)


def test_values_that_are_not_secret_are_shown_as_written(shown: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Values keep their units. The name of a group or topic is never treated as a secret."""
    whole, given = shown
    group = whole["groups"]["token-mailer"]
    assert whole["nameserver"] == ["10.0.0.1:9876"]
    assert (whole["client"]["access_key"], whole["client"]["security_token"]) == (HIDDEN, "")
    assert (group["pull_interval"], group["consume_timeout"], group["max_body_size"]) == ("50ms", "15m", "16MiB")
    assert group["subscriptions"]["orders-secret"] == {"expression": "paid || refunded", "kind": "TAG"}
    options = group["handler"]["options"]
    assert (options["path"], options["retries"], group["handler"]["canary"]["share"]) == ("/var/orders", 3, "2.5%")
    assert options["command"][-2:] == ["--to", "ada"]
    assert options["webhook"] == f"https://{HIDDEN}@example.org/{HIDDEN}"
    assert set(given["groups"]["token-mailer"]) == {"subscriptions", "pull_interval", "handler"}
    assert "state_dir" in whole
    assert "state_dir" not in given


class KeyedOptions(BaseModel):
    keys: list[SecretStr]


def test_an_option_may_be_called_keys() -> None:
    hide_options({}, KeyedOptions(keys=[SecretStr("KEYSECRET")]))
    assert hide_secrets("with KEYSECRET") == f"with {HIDDEN}"
