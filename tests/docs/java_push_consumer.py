"""The names of RocketMQ's push consumer in java_push_consumer.txt, by sections."""

from __future__ import annotations

from pathlib import Path


def names(section: str = "", *, but: str | None = None) -> list[str]:
    """The names of the sections whose titles begin with `section`, and not with `but`."""
    found, title = [], ""
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if line.startswith("["):
            title = line.strip("[]")
        elif title.startswith(section) and not line.startswith("#") and not (but and title.startswith(but)):
            found += line.split()
    return found
