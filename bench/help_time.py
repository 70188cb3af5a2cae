"""The time of `rmqd --help`, compared with an idle interpreter."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from bench import contenders

ROUNDS = 15
BUDGET_MS = 130.0


def measure() -> str:
    """Return a sentence with both medians. The goals do not include them."""
    commands = {"help": [*contenders.rmqd(), "--help"], "nothing": [sys.executable, "-c", "pass"]}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            begin = time.perf_counter()
            done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            taken[name].append((time.perf_counter() - begin) * 1000)
            if done.returncode:
                return f"rmqd --help fails (exit status {done.returncode}): {done.stderr.strip()[-200:]}"
    shown, bare = statistics.median(taken["help"]), statistics.median(taken["nothing"])
    return (
        f"`rmqd --help` takes {shown:.0f} ms, `python -c pass` {bare:.0f} ms: "
        f"{shown - bare:.0f} ms more, of {BUDGET_MS:.0f} allowed"
    )
