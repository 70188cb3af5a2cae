"""Trace records as `TraceDataEncoder.decoderFromTraceDataString` of RocketMQ 5.5.0 reads them."""

from __future__ import annotations

import re
from typing import Any

import pytest


def read_trace(data: bytes) -> list[dict[str, Any]]:
    """Read trace records as Java does: its `String.split` drops empty fields at the end, and fields have numbers."""
    contexts: list[dict[str, Any]] = []
    for context in java_split(data.decode(), "\x02"):
        line = java_split(context, "\x01")
        match line[0]:
            case "Pub":
                assert len(line) in (13, 14) or len(line) >= 15
                contexts.append(
                    {
                        "type": "Pub", "time": int(line[1]), "region": line[2], "group": line[3], "topic": line[4],
                        "id": line[5], "tags": line[6], "keys": line[7], "host": line[8], "length": int(line[9]),
                        "cost": int(line[10]), "kind": int(line[11]), "offset_id": line[12],
                        "success": line[13].lower() == "true",
                    }
                )  # fmt: skip
            case "SubBefore":
                contexts.append(
                    {
                        "type": "SubBefore", "time": int(line[1]), "region": line[2], "group": line[3],
                        "request": line[4], "id": line[5], "retries": int(line[6]), "keys": line[7],
                    }
                )  # fmt: skip
            case "SubAfter":
                context_ = {
                    "type": "SubAfter", "request": line[1], "id": line[2], "cost": int(line[3]),
                    "success": line[4].lower() == "true", "keys": line[5],
                }  # fmt: skip
                if len(line) >= 7:
                    context_["code"] = int(line[6])
                if len(line) >= 9:
                    context_ |= {"time": int(line[7]), "group": line[8]}
                contexts.append(context_)
            case _:
                pytest.fail(f"no record begins with {line[0]!r}")
    return contexts


def java_split(text: str, separator: str) -> list[str]:
    return re.sub(f"{separator}+$", "", text).split(separator)
