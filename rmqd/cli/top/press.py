"""The effect of a key: the new state and a request. Keys change nothing in the daemon without confirmation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from rmqd.cli.top.columns import Fields, key_of
from rmqd.cli.top.state import HELP, Diagnose, Pages, State, Switch, group_of

BACK: Final = ("escape", "left", "backspace")
OPEN: Final = ("enter", "right")
STEPS: Final = {"up": -1, "k": -1, "down": 1, "j": 1}
PAGES: Final = {"page up": -1, "page down": 1, " ": 1}
ENDS: Final = {"home": 0, "g": 0, "end": -1, "G": -1}


class Quit:
    """A request to end the view."""


@dataclass(frozen=True, slots=True)
class Pressed:
    """The result of a key."""

    state: State
    wish: Switch | Diagnose | Quit | None = None


def press(state: State, key: str, document: dict[str, Any]) -> Pressed:
    """Return the state after a key, which is a character or a name such as `enter`."""
    if key == "ctrl-c":
        return Pressed(state, Quit())
    state = replace(state, notice="")
    if state.question is not None:
        answer = replace(state, question=None)
        return (
            Pressed(answer, state.question) if key in "yY" else Pressed(replace(answer, notice="nothing was changed"))
        )
    if state.typed is not None:
        return Pressed(_type(state, state.typed, key))
    if state.pages is not None:
        return Pressed(_turn(state, state.pages, key))
    return _in_list(state, key, document)


def _type(state: State, typed: str, key: str) -> State:
    if key == "escape":
        return replace(state.with_listing(filter=""), typed=None)
    if key == "enter":
        return replace(state, typed=None)
    typed = typed[:-1] if key == "backspace" else typed + key if len(key) == 1 else typed
    return replace(state.with_listing(filter=typed), typed=typed)


def _turn(state: State, pages: Pages, key: str) -> State:
    if key in (*BACK, "q", "?"):
        return replace(state, pages=None)
    last = max(0, len(pages.lines or ()) - state.page)
    step = STEPS.get(key, PAGES.get(key, 0) * state.page)
    first = ENDS[key] * -last if key in ENDS else pages.first + step
    return replace(state, pages=replace(pages, first=min(max(0, first), last)))


def _in_list(state: State, key: str, document: dict[str, Any]) -> Pressed:
    if key == "q":
        return Pressed(state, Quit())
    if key in ("?", "h"):
        return Pressed(replace(state, pages=Pages("help", HELP)))
    if key == "/":
        return Pressed(replace(state, typed=state.listing.filter))
    if key in ("<", ">"):
        places = len(state.listing.columns)
        return Pressed(state.with_listing(sort=(state.listing.sort + (1 if key == ">" else -1)) % places))
    if key == "r":
        return Pressed(state.with_listing(backward=not state.listing.backward))
    if key in BACK:
        return Pressed(replace(state, group="") if state.group else state.with_listing(filter=""))
    chosen = state.chosen(document)
    return Pressed(state) if chosen is None else _on_row(state, key, document, chosen)


def _on_row(state: State, key: str, document: dict[str, Any], chosen: Fields) -> Pressed:
    """Handle a key for the row under the cursor."""
    if key in STEPS or key in PAGES or key in ENDS:
        return Pressed(_move(state, key, document))
    name = state.group or str(chosen["name"])
    if key in OPEN and not state.group:
        return Pressed(replace(state, group=name, queues=replace(state.queues, cursor="", filter="")))
    if key == "p" and chosen.get("is_retry"):
        return Pressed(replace(state, notice="a retry queue can only be paused with its whole group"))
    if key == "p":
        return Pressed(replace(state, question=_switch(name, document, chosen)))
    if key == "d":
        return Pressed(replace(state, pages=Pages(f"rmqd diagnose {name}", None)), Diagnose(name))
    return Pressed(state)


def _move(state: State, key: str, document: dict[str, Any]) -> State:
    rows = state.rows(document)
    place = state.listing.at(rows) + STEPS.get(key, PAGES.get(key, 0) * state.page)
    place = ENDS[key] % len(rows) if key in ENDS else min(max(0, place), len(rows) - 1)
    return state.with_listing(cursor=key_of(rows[place]))


def _switch(name: str, document: dict[str, Any], chosen: Fields) -> Switch:
    """Return the request to pause or resume the group or the selected queue, whichever applies."""
    if "queue" not in chosen:
        return Switch("resume" if chosen["paused"] else "pause", name)
    group = group_of(document, name) or {"paused": False, "pauses": []}
    number = chosen["queue"] if chosen["queue"] >= 0 else None  # any queue of the broker, because the group pops
    scope = {"topic": chosen["topic"], "broker": chosen["broker"], "queue": number}
    is_paused = chosen["state"] == "paused" or scope in group["pauses"]
    return Switch("resume" if is_paused else "pause", name, **scope)
