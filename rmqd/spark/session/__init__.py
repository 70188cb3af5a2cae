"""Spark sessions, access to the cluster, and helpers of the driver."""
