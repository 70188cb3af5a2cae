"""Handlers over real messages: which line failed, what would become of a message, which one is to blame."""

from __future__ import annotations
