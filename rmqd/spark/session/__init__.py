"""Spark sessions, access to the RocketMQ cluster from Spark's processes, and the specification of a group on Spark."""
