"""The history of the daemon's groups: an hour of lag and throughput, the last minute's rates, and findings.

The daemon's own process keeps it, from the snapshots of all processes. So the hot path is not involved. Its memory is
limited to a constant for each group.

    recorder  Recorder: adds a point every few seconds; rates and latency of the last minute
    series    GroupSeries: the ring of one group's points
    totals    GroupTotals: the counters of a group, summed over its topics
    findings  FindingLog: the problems of a group, active and ended
"""
