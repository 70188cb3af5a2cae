"""Groups that consume lite topics (RIP-83, RocketMQ 5.5): selected lite topics of one parent topic.

Members subscribe to lite topics at each broker, and pop messages of all their lite topics with one request. The broker
keeps an offset for each lite topic. While a member has messages of a lite topic, no pop returns others of this topic.
POP groups use the same ready queues, workers, settlement and receipts. Only lite groups load this package.
"""
