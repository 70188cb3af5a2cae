"""A deterministic simulation: rmqd's clients, consumers and brokers on one event loop, without threads or sockets.

A seed decides everything: delays, failures, and which members join and leave. The same seed gives the same history,
event by event, on every machine.

- `loop`: the event loop, whose time jumps to the next timer, and the hosts, which can be paused and killed.
- `network`: which hosts reach each other, with delays, lost frames and partitions; `connection`: connections in
  memory, which are reset, torn inside a frame, or go mute.
- `commit_threads`: how brokers process commits: in any order, late, or not at all.
- `disk`: the values that a broker has stored, some of which survive a crash.
- `cluster`: brokers (`rmqd.broker`'s own), each on a host; `name_servers`: the name servers where they register.
- `offsets`: the group's offsets as brokers store them.
- `slave`: a slave of a broker, whose copy is some moments old.
- `names`: the names of the topic and the group.
- `members`: members of a group, each on a host, and their handlers.
- `plan`: a history before it happens, drawn from a seed; `happenings`: all possible events.
- `habits`: how often handlers are slow, and how often they fail.
- `history`: a plan as it happens, with a `producer`; `ending`: how it comes to rest; `outcome`: its result.
- `trials`: the last part of some histories: one event at a time, after which the group must continue in time.
- `trial_choice`: which trials a history has.
- `plain_trials`, `offset_trials`, `reset_trials`, `trials_of_members`, `trials_of_lines`, `hand_overs`: the trials,
  by subject; `trial_steps`: their steps; `sender`: their messages.
- `shares`: which member owns which queue during the trials.
- `ledger`: the messages delivered to handlers, and when the handlers finished them.
- `judging`: finds faults: messages that are lost, out of order, late or repeated without a cause, and wrong commits.
- `timeline`: a history as readable lines, and as a digest that shows whether two runs are the same.
- `run`: runs a plan; `serve_seeds`: a process that runs seeds for the tests.

`test_simulation` runs a few fixed seeds. `tests/nightly/simulation` runs as many as time allows, shortens a plan with
a fault as far as possible, and contains the planted bugs: `python -m tests.nightly.simulation --help`.
"""
