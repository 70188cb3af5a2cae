"""An operator moves a group in a topic: the plan, the requests to brokers, and whether the members obey.

Nobody joins the group, or pulls under its name.

    goal       where to: the first message, the end, a time, an offset, so many further, or a backup's offsets
    places     GroupPlaces: where a group is, by the brokers and by its members
    plan       plan_reset: each queue's present offset and its new one, or why it stays
    ways       how a broker takes a reset: it keeps it for the next pull, pushes it to members, or stores an offset
    obedience  whether a queue, and the member that has it, went where it was sent
    watch      Watch: looks at the queues until the members have obeyed; a reset that is lost is sent again
    carry_out  carry_out: sends the resets, and says what came of them
"""
