"""The commands, one module each. Large dependencies are imported when the command that needs them runs.

A command prints text, or JSON with `-o json`. Exit codes are in `rmqd.errors`.
"""
