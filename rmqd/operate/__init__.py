"""Inspection and control of a group from outside: queries, resets, diagnosis, dead letters, try, replay."""
