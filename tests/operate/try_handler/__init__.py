"""Handlers on real messages: the failing line, the decision about each message, the message that fails."""

from __future__ import annotations
