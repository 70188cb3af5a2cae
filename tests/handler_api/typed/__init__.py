"""Typed handlers: their arguments, bodies that cannot be decoded, and wrong signatures."""

from __future__ import annotations
