"""Sends of messages, for retries, dead letters, message trace and `rmqd send`.

All attempts of a send share one deadline. A send is repeated if its response is lost, so a message may be stored twice.
"""
