"""Tools that work without a running daemon: queries, resets, diagnosis, dead letters, `try`, `replay`, pull mode."""
