"""The producer, which sends retries, dead letters, message trace, and the messages of `rmqd send`.

All attempts of a send share one deadline. A send whose response is lost is repeated, so a message may be stored twice.
"""
