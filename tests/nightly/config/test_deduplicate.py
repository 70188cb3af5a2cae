"""`deduplicate`: refused groups and stores, each with its line.

The core of these tests is in tests/config/test_deduplicate.py.
"""

from __future__ import annotations

import pytest

from rmqd.consumer.consumer_options import DeduplicationOptions
from tests.config.configuration import problems
from tests.config.test_deduplicate import GROUP, folder, options

__all__ = ["folder"]


REFUSED = {
    "another id": (
        'deduplicate: {by: "keys\\n"}',
        "6:23: groups.mailer.deduplicate.by: 'keys\\n' is not valid; expected msg_id, keys, or property:NAME",
    ),
    "another store": (
        "deduplicate: {store: mysql}",
        "6:26: groups.mailer.deduplicate.store: 'mysql' is not a choice; expected sqlite | redis | postgresql",
    ),
    "a store without its URL": (
        "deduplicate: {store: redis}",
        "6:5: groups.mailer.deduplicate.url: required by store: redis; "
        "expected redis://... or rediss://... or unix://...",
    ),
    "the URL of another store, without its password": (
        "deduplicate: {store: postgresql, url: 'redis://:secret@r'}",
        "6:43: groups.mailer.deduplicate.url: not a URL for store: postgresql; "
        "expected postgresql://... or postgres://...",
    ),
    "a password with an @": (
        "deduplicate: {store: postgresql, url: 'postgresql://me:p@ss@db/shop'}",
        "6:43: groups.mailer.deduplicate.url: more than one @ before the host; expected %40 for an @ in the user or "
        "the password",
    ),
    "a URL in place of a path": (
        "deduplicate: {url: 'redis://r'}",
        "6:24: groups.mailer.deduplicate.url: a URL is not possible with store: sqlite; "
        "expected a path, or empty for a file in state_dir",
    ),
    "for every member": (
        "message_model: broadcasting\n    deduplicate: {}",
        "7:5: groups.mailer.deduplicate: not possible with broadcasting: each member of a broadcasting group must "
        "handle every message; remove this key",
    ),
    "with rollbacks": (
        "consume_mode: orderly\n    auto_commit: false\n    deduplicate: {}",
        "8:5: groups.mailer.deduplicate: not possible with auto_commit: false: after a rollback, messages must be "
        "handled again; remove it",
    ),
    "a file on Spark": (
        "engine: spark\n    deduplicate: {}",
        "7:5: groups.mailer.deduplicate: Spark does not support sqlite: its file is on one machine, but tasks run on "
        "several; "
        "expected store: redis or postgresql, with its url",
    ),
}


@pytest.mark.parametrize(("store", "url"), [("redis", "redis://r"), ("postgresql", "postgresql://p/shop")])
def test_stores_with_a_server_are_accepted_for_spark(store: str, url: str) -> None:
    where = options(f"engine: spark\n    deduplicate: {{store: {store}, url: '{url}'}}")
    assert where == DeduplicationOptions("msg_id", store, url, 259200.0)  # type: ignore[arg-type]


def test_invalid_deduplication_is_refused_with_its_place(subtests: pytest.Subtests) -> None:
    for name, (text, problem) in REFUSED.items():
        with subtests.test(name):
            assert problems(f"{GROUP}    {text}\n") == [f"test.yaml:{problem}"]
