"""Groups that consume selected lite topics of one parent topic (RIP-83, RocketMQ 5.5).

Members subscribe to lite topics at each broker, and pop messages of all their lite topics with one request. The broker
keeps an offset for each lite topic. While a member has messages of a lite topic, the broker returns no other messages
of that lite topic. Ready queues, workers, settlement and receipts are the same as in POP groups. Other groups do not
load this package.
"""
