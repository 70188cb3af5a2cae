"""`run_handler(..., chaos=True)`: whether what a handler leaves depends on how often, and when, messages come.

The handler is called here as its group calls it, outside of any consumer: so a history of deliveries is the same each
time, takes no time, and can be made shorter.

    history    deliveries in an order that may happen, and which of them are tried
    memory     what a handler keeps in this process: seen, and put back
    state      any state as values that can be compared; what differs, and what never is the same
    call       one delivery: called to its end, or cut at one of its awaits
    killed     with chaos="kills": a part of a history that is run in a process of its own, which is killed
    killed_main  that process
    trial      one history from the same beginning, and what it leaves
    shorten    the shortest history that still leaves something else
    search     runs the histories; where what was written cannot be put back, deliveries on top of it
    run        what starts it around the run of a group
    report     the history as a timeline for a person
"""
