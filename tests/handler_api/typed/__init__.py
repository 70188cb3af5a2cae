"""Typed handlers: what they are given, what becomes of a body that they do not take, what is wrong with one."""

from __future__ import annotations
