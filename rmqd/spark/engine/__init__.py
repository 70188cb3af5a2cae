"""One group on Spark as the driver sees it: from its first heartbeat to its last commit."""
