"""Fuzzers that are guided by coverage, and the corpus that they begin with.

    target           Target: runs code with an input, checks the result, and mutates the input
    frames, configurations, requests
                     the targets
    frame_changes, line_changes, request_changes
                     changes of their inputs; lengths and checksums around a change are corrected
    targets          the targets by name, and the modules whose coverage counts
    guided           one run of Atheris, in a separate process; the campaign `fuzz` runs many
    keep             merges the inputs that a run has found into the corpus
    planted          bugs that check that a fuzzer finds bugs
    corpus.zip       the kept inputs: test_corpus runs them without a fuzzer

`make campaign fuzz` runs the fuzzers. `python -m tests.nightly.fuzzing TARGET FILE` repeats an input that failed.
"""
