"""Client ids, local addresses, and secrets in options."""

from __future__ import annotations

from pathlib import Path

from rmqd.client.client_options import ClientOptions, local_address, make_client_id


def test_client_ids_are_unique_and_have_javas_form() -> None:
    """The default instance gets a unique name even in the same process. A given name is kept."""
    ids = {make_client_id("10.0.0.1", "DEFAULT") for _ in range(100)}
    assert len(ids) == 100
    assert all(client_id.startswith("10.0.0.1@") and "#" in client_id for client_id in ids)
    assert make_client_id("10.0.0.1", "mailer") == "10.0.0.1@mailer"
    assert make_client_id("10.0.0.1", "mailer", "east") == "10.0.0.1@mailer@east"


def test_the_local_address_is_one_of_this_machine() -> None:
    """Host names and loopback addresses of peers are skipped without a lookup."""
    for peers in ([], ["localhost:9876"], ["127.0.0.1:9876"], ["[::1]:9876"], ["nonsense"]):
        address = local_address(peers)
        if address != "127.0.0.1" and Path("/proc/net/fib_trie").exists():
            assert address in Path("/proc/net/fib_trie").read_text() or ":" in address


def test_the_text_of_the_options_has_no_secrets() -> None:
    """Options may be logged."""
    text = repr(ClientOptions(access_key="ak", secret_key="s3cr3t", security_token="t0k3n"))
    assert "s3cr3t" not in text
    assert "t0k3n" not in text
