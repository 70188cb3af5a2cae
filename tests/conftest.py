"""Fixtures and guards of every test."""

from __future__ import annotations

pytest_plugins = ["tests.rocketmq.fixtures"]
