"""Versions of old clients: their names, and the requests that they cannot answer (`MQVersion.java`)."""

from __future__ import annotations

from typing import Final

TAKES_RESETS: Final = 28  # V3_0_7_SNAPSHOT: RESET_CONSUMER_CLIENT_OFFSET, GET_CONSUMER_STATUS_FROM_CLIENT
TELLS_OPERATORS: Final = 62  # V3_1_8_SNAPSHOT: GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY

_BEFORE_3_0_1: Final = (
    "SNAPSHOT ALPHA1 BETA1 BETA2 BETA3 BETA4 BETA5 BETA6_SNAPSHOT BETA6 BETA7_SNAPSHOT BETA7 BETA8_SNAPSHOT BETA8 "
    "BETA9_SNAPSHOT BETA9 FINAL"
).split()
_FIRST_3_1: Final = 46


def version_desc(version: int) -> str:
    """Return the name of a version below TELLS_OPERATORS. Since 3.0.1, snapshots have their own numbers."""
    if version < len(_BEFORE_3_0_1):
        return f"V3_0_0_{_BEFORE_3_0_1[max(0, version)]}"
    suffix = "" if version % 2 else "_SNAPSHOT"
    if version < _FIRST_3_1:
        return f"V3_0_{(version - len(_BEFORE_3_0_1)) // 2 + 1}{suffix}"
    return f"V3_1_{(version - _FIRST_3_1) // 2}{suffix}"
