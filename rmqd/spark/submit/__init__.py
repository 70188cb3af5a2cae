"""Groups on clusters: packed environments, and the options for spark-submit.

The driver on the cluster runs the group like `rmqd spark run`.
"""
