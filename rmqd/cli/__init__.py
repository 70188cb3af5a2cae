"""The modules of rmqd's commands. Large dependencies are imported only when a command that needs them runs.

A command prints text, or JSON with `-o json`. Its exit codes are the members of `rmqd.errors.ExitCode`.
"""
