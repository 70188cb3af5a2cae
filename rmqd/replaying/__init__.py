"""A window of a group's messages handled again, under a shadow group beside it, which is removed at the end.

Nothing of the group itself changes: the shadow has members, offsets and a retry topic of its own. It sends nothing
back: what fails is tried again in this process, and what is given up is written to a file. A leaf: only the commands
use this room.

    plan       ReplayPlan: what is to be handled, kept in a file until it is
    ways_back  what becomes of messages that fail
    run        one run: until all is handled, or it is stopped
    shadow     the shadow group on the brokers: made, looked at, removed
"""
