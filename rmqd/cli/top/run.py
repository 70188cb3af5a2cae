"""The loop of the live view, from the first picture to the last."""

from __future__ import annotations

import queue
from dataclasses import replace
from typing import Final

from rmqd.cli.top.frame import clock_time, frame
from rmqd.cli.top.press import Quit, press
from rmqd.cli.top.screen import Screen
from rmqd.cli.top.state import Diagnose, Pages, State, Switch
from rmqd.cli.top.watch import Watch

TICK_SECONDS: Final = 1.0  # redraws the age of the figures and the time, whatever the daemon does


def run(watch: Watch) -> None:
    """Show the daemon until the user quits, or the terminal is closed."""
    screen, state = Screen(), State()
    watch.woken = screen.wake
    watch.start()
    with screen.taken():
        while True:
            state = _with_news(replace(state, page=screen.size.rows), watch)
            heard = watch.heard(clock_time())
            screen.show(frame(state, heard, screen.size))
            try:
                keys = screen.keys(TICK_SECONDS)
            except (EOFError, OSError):
                return
            for key in keys:
                if key == "ctrl-z":
                    screen.suspend()
                    continue
                pressed = press(state, key, heard.document)
                state = pressed.state
                match pressed.wish:
                    case Quit():
                        return
                    case Switch() as switch:
                        watch.switch(switch)
                    case Diagnose() as wish:
                        watch.diagnose(wish)


def _with_news(state: State, watch: Watch) -> State:
    """Add the results of pauses and diagnoses since the last picture."""
    try:
        while True:
            state = replace(state, notice=watch.notices.get_nowait())
    except queue.Empty:
        pass
    try:
        lines = watch.pages.get_nowait()
    except queue.Empty:
        return state
    if state.pages is None or state.pages.lines is not None:
        return state  # the user left it before the command ended
    return replace(state, pages=Pages(state.pages.title, lines))
