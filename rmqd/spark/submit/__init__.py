"""Groups on Spark clusters: packed environments, and the command line of spark-submit.

The driver that spark-submit starts runs the group like `rmqd spark run`.
"""
