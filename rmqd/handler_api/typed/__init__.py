"""Typed handlers: functions that receive decoded payloads."""
