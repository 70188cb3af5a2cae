"""POP: messages that are hidden from other members while one member has them. Members do not own queues.

The requests are answered in `processors`: `pop`, `pop_polling`, `acks`, `assignment`, `lite`.
"""
