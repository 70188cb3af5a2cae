"""POP: messages that are hidden from other members while one member has them. Members do not own queues.

The requests are answered in `processors`: `pop`, `pop_polling`, `acks`, `assignment`, `lite`.

    assignment  the queues that a member pulls or pops
    order       orderly pops: a queue is closed while a member has its messages
    held_pops   pops that wait for a message
    lite        lite topics: their subscribers, and the member that is notified of their messages
    revive      messages that were not acknowledged in time
"""
