"""The stores of `deduplicate`, each against the real thing."""

from __future__ import annotations
