"""`rmqd try`: a group's handler on real messages, in a separate process; nothing is committed."""
