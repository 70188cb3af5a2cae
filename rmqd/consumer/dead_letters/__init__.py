"""The dead letters of a group: which are left, replay, and settlement without a replay.

Brokers cannot remove a single message from a topic. So a replayed or purged letter is marked as settled: by offset, in
a file below `state_dir`, and at the brokers by the group's offset in its `%DLQ%` topic, which is the first letter that
is left. A letter is left if no mark covers it. The modules are for commands, not for running groups. No command joins a
group or pulls in a group's name.

    spans     Spans: a set of offsets
    marks     Marks: the file with settled letters and running replays
    letter    Letter: one dead letter with its reason and original topic
    choice    Choice: the letters that a command applies to
    reading   the queues of dead letters, and the letters left in them
    plan      the letters that a replay would send, by reason and topic, and the members that would get them
    sending   CopySender: sends a copy of a letter, and finds copies on brokers
    replay    Replay: sends letters in windows, each letter once
    settling  settles letters without a replay; the group's offset at the brokers
    listing   groups with dead letters; the newest letters of a group
"""
