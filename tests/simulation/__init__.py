"""A deterministic simulation: rmqd's clients, consumers and brokers on one event loop, without threads or sockets.

A seed decides all: when answers come, what breaks, who joins and leaves. The same seed gives the same history, event by
event, on every machine.

- `loop`: the event loop; its time jumps to the next timer. Also the hosts, which can be paused and killed.
- `network`: who reaches whom, with delays, lost frames and partitions; `connection`: connections in memory, which are
  cut, torn inside a frame, or go mute.
- `commit_threads`: how brokers take up commits, in any order, late, or not at all.
- `disk`: what a broker has stored, and what of it survives a crash.
- `cluster`: brokers (`rmqd.broker`'s own), each on a host; `name_servers`: what these register with.
- `offsets`: what brokers store of the group's offsets.
- `slave`: a slave of a broker, which has what it copied some moments ago.
- `names`: of the topic and the group.
- `members`: members of a group, on a host each, and their handlers.
- `plan`: a history before it happens, drawn from a seed; `happenings`: all that may happen.
- `habits`: what of their batches handlers are slow at, and fail at.
- `history`: a plan as it happens, with a `producer`; `ending`: how it comes to rest; `outcome`: what came of it.
- `trials`: how some histories end: one thing happens at a time, and all must go on in time after it.
- `trial_choice`: which trials a history has.
- `plain_trials`, `offset_trials`, `reset_trials`, `trials_of_members`, `trials_of_lines`, `hand_overs`: most of them,
  by subject; `trial_steps`: their steps; `sender`: their messages.
- `shares`: who has which queue meanwhile.
- `ledger`: what handlers were given, and when they finished it.
- `judging`: what is wrong with it: lost, out of order, twice without a cause, late, stuck, committed wrongly.
- `timeline`: a history as lines for a person, and as a digest that shows whether two runs are the same.
- `run`: runs a plan; `serve_seeds`: a process that runs the seeds it is given, for the tests.

`test_simulation` runs a few fixed seeds. `tests/nightly/simulation` runs as many as time allows, makes a plan in which
something is wrong as short as possible, and has the planted bugs: `python -m tests.nightly.simulation --help`.
"""
