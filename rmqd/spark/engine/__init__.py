"""The driver of one group with `engine: spark`.

`group_run` runs the group until its last commit. `checkpoint_generations` chooses where each query starts.
"""
