"""`rmqd run --reload`: groups begin anew with their handlers' new code when files of these change.

New code runs in a new process: nothing that the old code made, such as what it registered somewhere, is left in it, and
a module that another one imported is never of another age than that one.

    groups   ReloadingGroups: workers of its own for each group, replaced when its files change
    files    which files are a handler's
"""
