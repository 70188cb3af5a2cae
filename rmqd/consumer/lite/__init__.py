"""Groups that consume lite topics (RIP-83, RocketMQ 5.5): selected lite topics of one parent topic.

Members subscribe to lite topics at each broker, and pop messages of all their lite topics with one request. The broker
keeps an offset for each lite topic. While a member has messages of a lite topic, the broker returns no others of it.
Ready queues, workers, settlement and receipts are shared with POP groups. Only such groups load this package.
"""
