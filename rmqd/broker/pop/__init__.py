"""POP: messages that are hidden from others while one member has them, without anybody owning a queue.

The requests are answered in `processors`: `pop`, `pop_polling`, `acks`, `assignment`, `lite`.

    assignment  which queues a member pulls or pops
    order       orderly pops: a queue is closed while a member has its messages
    held_pops   pops that wait for a message
    lite        lite topics: who wants which, and who is told of their messages
    revive      messages that nobody acknowledged in time
"""
