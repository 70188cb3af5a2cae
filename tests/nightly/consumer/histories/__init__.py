"""Random histories of offsets and hand-overs, beside a model, in time that jumps: no socket, no clock, one process.

`python -m tests.nightly.consumer.histories offsets --seed 17` (or `hand_over`) runs one again; sets have the same
order then.
"""
