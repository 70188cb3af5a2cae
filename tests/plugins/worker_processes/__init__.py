"""Worker processes of handlers: real ones, with handlers that die, hang and eat memory."""

from __future__ import annotations
