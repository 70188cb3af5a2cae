"""An operator's reset of a group in a topic: the plan, the requests to brokers, and verification by the members.

The reset does not join the group, and does not pull under its name.

    goal       the destination: the first message, the end, a time, an offset, a number to skip, or a backup's offsets
    places     GroupPlaces: the group's offsets, at the brokers and at its members
    plan       plan_reset: each queue's present offset and its new one, or the reason why it stays
    ways       how a broker applies a reset: with the next pull, by a push to members, or as a stored offset
    obedience  whether a queue, and its owner, continue at the new offset
    watch      Watch: polls the queues until the members have applied the reset; repeats a lost reset
    carry_out  carry_out: sends the resets, and returns the outcome
"""
