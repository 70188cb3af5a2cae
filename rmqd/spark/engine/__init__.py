"""One group on Spark, seen from the driver.

`group_run` runs it from its first heartbeat to its last commit. `checkpoint_generations` decides where a query starts.
"""
