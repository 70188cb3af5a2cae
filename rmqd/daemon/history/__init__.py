"""What the daemon remembers of its groups: an hour of lag and throughput, the last minute's rates, and findings.

It is kept in the daemon's own process, from the snapshots of all processes, so the hot path has no part in it. The
memory that it takes is bounded by a constant for each group.

    recorder  Recorder: takes a point every few seconds; rates and latency of the last minute
    series    GroupSeries: the ring of one group's points
    totals    GroupTotals: the counters of a group, added up over its topics
    findings  FindingLog: what was found wrong with a group, since when, and what has ended
"""
