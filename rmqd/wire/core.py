"""The core that decodes frame headers and message records: C if the extension `native.c` was built, else Python.

The Python code in `command` and `messages.decode` is the reference. The native core decodes plain headers and records,
and leaves all others to the Python code, so only the Python code rejects bytes. `RMQD_CORE=python` in the environment
turns the native core off, to search for a fault or to compare.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Final, Literal, Protocol, cast
from zlib import crc32

NATIVE_SOURCE: Final = Path(__file__).with_name("native.c")
PlainHeader = tuple[int, int, int | None, int | None, dict[str, str] | None, str | None, str | None]


class NativeCore(Protocol):
    """The functions of `native.c`."""

    def frame_plain(
        self,
        message_type: type,
        slots: tuple[Any, ...],
        block: object,
        data: bytes,
        start: int,
        messages: list[Any],
        unusual_flags: int,
        /,
    ) -> tuple[int, int, int]:
        """Decode records from `start` on into `messages`, up to the first record that is not plain.

        Returns the end of the last plain record, the number of runs of consecutive offsets, and the offset that would
        continue the last run. A plain record has magic V1, IPv4 hosts, a correct CRC, and none of `unusual_flags`.
        """

    def decode_header(self, payload: bytes, body_start: int, /) -> PlainHeader | None:
        """Return code, opaque, flag, version, ext fields, remark and language of a JSON header; None if not plain.

        A plain header has no blanks, no escapes, only ASCII, and values of the usual types.
        """


def load_native_core() -> NativeCore | None:
    """Return the native core; None if it is turned off, not built, or built from another version of its source."""
    if os.environ.get("RMQD_CORE") == "python":
        return None
    try:
        native = importlib.import_module("rmqd.wire.native")
    except ImportError:  # built without a C compiler
        return None
    is_stale = NATIVE_SOURCE.exists() and getattr(native, "source_crc", None) != crc32(NATIVE_SOURCE.read_bytes())
    return None if is_stale else cast(NativeCore, native)


native = load_native_core()
"""The native core, or None. Callers read `core.native` at each use, so that tests can replace it."""


def core_name() -> Literal["native", "python"]:
    """Return the name of the core in use, for operators."""
    return "python" if native is None else "native"
