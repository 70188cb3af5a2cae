"""Fuzzers that are guided by coverage, and the corpus that they begin with.

    target           Target: puts an input through code, judges it, and makes another input of it
    frames, configurations, requests
                     the targets
    frame_changes, line_changes, request_changes
                     how their inputs are changed, so that lengths and checksums around a change still hold
    targets          the targets by name, and the modules whose coverage counts
    guided           one run of Atheris, in a process of its own; the campaign `fuzz` runs many
    keep             merges what a run has found into the corpus
    planted          bugs to be found, to see that a fuzzer finds any
    corpus.zip       the kept inputs: test_corpus runs them without a fuzzer

`make campaign fuzz` runs them. An input that fails is run again by `python -m tests.nightly.fuzzing TARGET FILE`.
"""
