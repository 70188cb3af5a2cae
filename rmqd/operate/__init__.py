"""Operators' tools, which need no running daemon: queries, resets, diagnosis, dead letters, `try`, `replay`."""
