"""The handler `rocketmq`: passes messages on to another topic, or another cluster, by rmqd's own producer.

It is found by its entry point, as any handler; it is here, and not in the distribution rmqd-handlers, as that one uses
rmqd's public names alone.

    copies   what a message is on its way: the copy that is sent, its hops, what it must stay behind
    handler  the options; sends that are tried again; the client
"""
