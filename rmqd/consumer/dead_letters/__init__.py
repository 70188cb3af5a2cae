"""A group's dead letters after they came: which are left, having some handled again, settling others.

Brokers cannot take a single message out of a topic. So what was replayed or purged is marked: by offset, in a file
below `state_dir`, and at the brokers by the group's own read position in its `%DLQ%` topic, up to the first letter that
is left. What is listed, shown or replayed is what no mark covers. No module here belongs to a group that runs: commands
call them, and nobody joins a group or pulls under a group's name.

    spans     Spans: a set of offsets
    marks     Marks: the file with what is settled, and with what is on its way
    letter    Letter: one dead letter; its reason, the topic that it came from
    choice    Choice: which letters a command is about
    reading   the queues of dead letters, and the letters in them that are left
    plan      what a replay would send, by reason and topic, and who would get it
    sending   CopySender: one letter sent to be handled again; which copies brokers have
    replay    Replay: letters in windows, each of which goes out once
    settling  settling letters without a replay; the group's position at the brokers
    listing   the groups that have dead letters; the newest of a group
"""
