"""Helpers for any process: clock, threads, child processes, event loop, logs, files, and figures to report."""
