"""Offset resets: plan, execute and verify."""
