"""`rmqd run --reload`: restarts groups with new code when files of their handlers change.

New code runs in a new process. So nothing that the old code created or registered remains, and modules of different
versions are never mixed.

    groups   ReloadingGroups: separate workers for each group, replaced when its files change
    files    the files of a handler
"""
