"""POP: messages that are hidden from others while one member has them, without anybody owning a queue."""
