"""Settings as lines of `name=value`.

The body of UPDATE_BROKER_CONFIG (25) and UPDATE_NAMESRV_CONFIG (318), and of the responses to GET_BROKER_CONFIG (26)
and GET_NAMESRV_CONFIG (319).
"""

from __future__ import annotations

from collections.abc import Mapping


def dump_properties(values: Mapping[str, str]) -> bytes:
    """Write the lines, sorted by name."""
    return "".join(f"{name}={values[name]}\n" for name in sorted(values)).encode()


def load_properties(body: bytes) -> dict[str, str]:
    """Read the lines, without empty lines and comments (# or !). The last value of a name counts."""
    values = {}
    for line in body.decode(errors="replace").splitlines():
        text = line.strip()
        if text and text[0] not in "#!":
            name, _, value = text.partition("=")
            values[name.strip()] = value.strip()
    return values
