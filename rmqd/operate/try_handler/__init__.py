"""`rmqd try`: a group's handler on real messages, in a process of its own; nothing is committed."""
