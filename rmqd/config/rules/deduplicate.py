"""Rules about `deduplicate`: the groups that support it, and the requirements of its stores."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from rmqd.config.model.group import GroupConfig
from rmqd.config.problems import Finding
from rmqd.config.rules.urls import url_problem

_URLS: Final = {
    "redis": ("redis://", "rediss://", "unix://"),
    "postgresql": ("postgresql://", "postgres://"),
}
_PACKAGES: Final = {"redis": ("redis",), "postgresql": ("psycopg", "psycopg_pool")}
_SCHEME: Final = "://"


def deduplicate_findings(group: GroupConfig) -> Iterator[Finding]:
    """Check `deduplicate` of one group that has it. Paths of findings start at the group."""
    one = group.deduplicate
    if one is None:
        return
    if group.engine == "spark" and one.store == "sqlite":
        why = "its file is on one machine, but tasks run on several"
        accepted = "store: redis or postgresql, with its url"
        yield Finding(("deduplicate",), f"Spark does not support sqlite: {why}; expected {accepted}", at_key=True)
    if group.message_model == "broadcasting":
        why = "each member of a broadcasting group must handle every message"
        yield Finding(("deduplicate",), f"not possible with broadcasting: {why}; leave it out", at_key=True)
    if not group.auto_commit:
        why = "a rollback handles messages again"
        yield Finding(("deduplicate",), f"not possible with auto_commit: false: {why}; leave it out", at_key=True)
    path, schemes = ("deduplicate", "url"), _URLS.get(one.store, ())
    accepted = " or ".join(f"{scheme}..." for scheme in schemes) or "a path, or empty for a file in state_dir"
    if schemes and not one.url:
        yield Finding(path, f"missing with store: {one.store}; expected {accepted}", missing=True)
    elif schemes and not one.url.startswith(schemes):  # without its value, which may have a password
        yield Finding(path, f"not a URL for store: {one.store}; expected {accepted}")
    elif one.store == "postgresql" and (problem := url_problem(one.url)):
        yield Finding(path, problem)
    elif not schemes and _SCHEME in one.url:
        yield Finding(path, f"a URL with store: {one.store}; expected {accepted}")


def package_findings(name: str, group: GroupConfig) -> Iterator[Finding]:
    """Yield missing packages of the store. Paths start at the top."""
    store = "" if group.deduplicate is None else group.deduplicate.store
    absent = [package for package in _PACKAGES.get(store, ()) if find_spec(package) is None]
    if absent:
        message = f"{store} needs {' and '.join(absent)}, which is not installed; run pip install 'rmqd[{store}]'"
        yield Finding(("groups", name, "deduplicate", "store"), message)
