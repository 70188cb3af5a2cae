"""Needs of any process: clock, threads, child processes, the event loop, logs, watched files, and figures to report."""
