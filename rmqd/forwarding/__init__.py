"""The handler `rocketmq`: forwards messages to another topic or cluster, with rmqd's own producer.

It has an entry point like any other handler. It is not in the distribution rmqd-handlers, because that one uses only
rmqd's public names.

    copies   the copy that is sent, its hop count, its order key
    handler  the options, the client, and sends with retries
"""
