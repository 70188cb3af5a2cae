"""Needs of any process: clock, threads, child processes, the event loop, logs and watched files."""
