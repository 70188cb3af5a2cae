"""Renders the page from templates and documents. It takes milliseconds, so call it in a thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from rmqd.daemon.http.status_text import cell
from rmqd.daemon.page import words
from rmqd.daemon.page.assets import address_of
from rmqd.daemon.page.view import CALM_STATES, QUEUE_LOOKS, flat, group_views, sums


class StatusPage:
    """The page, and the part that its script updates."""

    def __init__(self) -> None:
        self._templates = Environment(
            loader=PackageLoader("rmqd.daemon.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        for name in ("whole", "compact", "rate", "seconds", "moment", "clock_time", "iso", "plural"):
            self._templates.filters[name] = getattr(words, name)
        self._templates.globals |= {
            "cell": cell,
            "queue_looks": QUEUE_LOOKS,
            "calm_states": CALM_STATES,
            "address_of": address_of,
        }

    def page(self, status: Mapping[str, Any], config: Mapping[str, Any], opened: Collection[str] | None) -> str:
        """Return the whole page. `opened` names the expanded groups; None decides by their number of queues."""
        return self._templates.get_template("page.html").render(_values(status, config, opened))

    def live(self, status: Mapping[str, Any], config: Mapping[str, Any], opened: Collection[str]) -> str:
        """Return the page's main part, which changes over time."""
        return self._templates.get_template("live.html").render(_values(status, config, opened))


def _values(status: Mapping[str, Any], config: Mapping[str, Any], opened: Collection[str] | None) -> dict[str, Any]:
    groups = group_views(status, config["config"], config["given"], opened)
    set_keys = {key for key, _ in flat(config["given"])}
    rest = {key: value for key, value in config["config"].items() if key != "groups"}
    return {
        "status": status,
        "groups": groups,
        "sums": sums(groups),
        "settings": [(key, value, key in set_keys) for key, value in flat(rest)],
        "now": status["now"],
    }
