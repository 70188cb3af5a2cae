"""`run_handler(..., chaos=True)`: checks whether a handler's effect depends on how often, and when, messages arrive.

The handler is called here as its group calls it, but without a consumer. So a history of deliveries is the same each
time, takes no time, and can be shortened.

    history    deliveries in a possible order, and the histories to try
    memory     a handler's objects in this process: reads and restores them
    state      states as values to compare; differences, and parts that always vary
    call       one delivery: called to its end, or cancelled at one of its awaits
    killed     with chaos="kills": runs a part of a history in a separate process, which is killed
    killed_main  that process
    trial      one history from the same starting state, and the resulting state
    shorten    the shortest history that still has a different result
    search     runs the histories; if writes cannot be undone, repeats deliveries after them
    run        starts chaos around the run of a group
    report     the history as a timeline
"""
