"""`rmqd try`: runs a group's handler with real messages in a separate process, and commits nothing."""
