"""Random histories of offsets and hand-overs, checked against a model in simulated time: no socket, one process.

`python -m tests.nightly.consumer.histories offsets --seed 17` (or `hand_over`) repeats one; sets have the same
order then.
"""
