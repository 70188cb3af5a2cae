"""A handler whose errors quote its options; its plugin name is `tests.daemon.leaking_handler:Leaking`."""

from __future__ import annotations

import logging
import pprint
from typing import Any

import structlog
from pydantic import BaseModel, SecretStr

from rmqd import Batch, DeadLetter, Retry

PLUGIN = "tests.daemon.leaking_handler:Leaking"
WAYS = ("raise", "chain", "log", "logging", "dead_letter", "retry", "start", "note")


class Leaking:
    """A handler that quotes its options in the way that `way` names."""

    class Options(BaseModel, extra="allow"):
        """`marked` is a secret by its type."""

        way: str
        marked: SecretStr | None = None

    def __init__(self, options: Options) -> None:
        self._way = options.way
        values: dict[str, Any] = dict(options.model_extra or {})
        if options.marked is not None:
            values["a setting"] = options.marked.get_secret_value()
        self._text = "; ".join(map(_quoted, values.values()))

    def start(self) -> None:
        """Raise if `way` is `start`."""
        if self._way == "start":
            raise ConnectionError(f"no connection: {self._text}")

    def handle(self, batch: Batch) -> None:
        """Quote the options, and fail."""
        match self._way:
            case "chain":
                raise RuntimeError("the service failed") from KeyError(self._text)
            case "log":
                structlog.get_logger().error(self._text, values=[{"inner": self._text}], size=len(batch))
            case "logging":
                logging.getLogger("shop").error("no connection: %s", self._text, extra={"said": self._text})
            case "dead_letter":
                raise DeadLetter(self._text)
            case "retry":
                raise Retry from ValueError(self._text)
            case "note":
                error = OSError(5, "refused")
                error.add_note(self._text)
                raise error
        raise RuntimeError(self._text)


def _quoted(value: Any) -> str:
    return value if isinstance(value, str) else pprint.pformat(value, width=1000)
