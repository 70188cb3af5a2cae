"""Values that cannot be equal on two brokers, which are generalised before the comparison."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

TIME, ID, OF_THE_BROKER, CLIENT = "<time>", "<id>", "<of the broker>", "<client>"
EARLIEST_MS, LATEST_MS = 1_500_000_000_000, 4_000_000_000_000
MILLISECONDS = re.compile(r"(?<![\w.])1[5-9]\d{11}(?![\w.])")
RECALL_HANDLE = base64.b64encode(b"v1 ").decode()
DATES = re.compile(r"\b20\d\d-\d\d-\d\d[ ,T#]?\d\d:\d\d:\d\d([:,.]\d{3})?")
ANY_ID = re.compile(r"\b[0-9A-F]{32}\b")
VERSION_COUNTER = re.compile(r'(?<="counter":)\d+')
HANDLE = re.compile(r"\b(\d+ 1[5-9]\d{11} \d+) [0-7] ([012] \S+ \d+ \d+)\b")
"""The handle of a popped message. Its fourth part is the revive queue, which pops use in turn."""
ANY_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
SHARED = {"commitLogOffset", "physicOffset", "indexLastUpdatePhyoffset"}
"""Positions in the commit log, which other clients write too."""
SHARED |= {"totalTopicNum", "totalGroupNum", "wipeTopicCount", "addTopicCount", "counter", "stateVersion"}
"""Counts that include other clients' topics and groups."""
SHARED |= {"reviveQid"}
"""The revive queue, which all pops use in turn."""
SHARED |= {"consumeTps", "topicPutTps", "delayTime"}
"""Current rates and ages."""


def generalised(value: Any, addresses: Mapping[str, str]) -> Any:
    """Replace times, ids, addresses and positions in the commit log by their kind, in a frame or a part of it.

    Lists are sorted, because Java writes sets in the order of their hashes. `opaque` is removed.
    """
    if isinstance(value, dict):
        return {
            _text(name, addresses): OF_THE_BROKER if name in SHARED else generalised(item, addresses)
            for name, item in value.items()
            if name != "opaque"
        }
    if isinstance(value, list):
        items = [generalised(item, addresses) for item in value]
        return items if _are_messages(items) else sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, str):
        return _text(value, addresses)
    if isinstance(value, int) and EARLIEST_MS < value < LATEST_MS:
        return TIME
    return value


def flattened(value: Any, path: str = "") -> dict[str, Any]:
    """Return all leaves by their paths."""
    if isinstance(value, dict) and value:
        parts = {f"{path}.{name}" if path else name: item for name, item in value.items()}
    elif isinstance(value, list) and value:
        parts = {f"{path}[{number}]": item for number, item in enumerate(value)}
    else:
        return {path: value}
    return {name: leaf for part, item in parts.items() for name, leaf in flattened(item, part).items()}


def _text(text: str, addresses: Mapping[str, str]) -> str:
    for name, address in addresses.items():
        text = text.replace(address, f"<{name}>")
    text = ANY_ADDRESS.sub(CLIENT, ANY_ID.sub(ID, text))
    if text.startswith(RECALL_HANDLE):
        text = base64.b64decode(text).decode()
    text = HANDLE.sub(rf"\1 {OF_THE_BROKER} \2", VERSION_COUNTER.sub(OF_THE_BROKER, text))
    return MILLISECONDS.sub(TIME, DATES.sub(TIME, text))


def _are_messages(items: list[Any]) -> bool:
    return bool(items) and isinstance(items[0], dict) and "bodyCRC" in items[0]
