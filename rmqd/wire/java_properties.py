"""Settings as lines of `name=value`, which requests 25 and 318 bring and the replies to 26 and 319 give."""

from __future__ import annotations

from collections.abc import Mapping


def dump_properties(values: Mapping[str, str]) -> bytes:
    """The lines, by name."""
    return "".join(f"{name}={values[name]}\n" for name in sorted(values)).encode()


def load_properties(body: bytes) -> dict[str, str]:
    """Read lines; those that are empty or begin with # or ! say nothing, and the last value of a name holds."""
    values = {}
    for line in body.decode(errors="replace").splitlines():
        text = line.strip()
        if text and text[0] not in "#!":
            name, _, value = text.partition("=")
            values[name.strip()] = value.strip()
    return values
