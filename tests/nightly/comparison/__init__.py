"""The same requests, sent to a real broker and to the embedded one, and what each answered, field by field.

`script` has the requests, `traffic` sends them, `bodies` decodes what comes back, `rules` says what cannot be the same
(times, ids, addresses), and `differences` what may differ, and why: that list stands in docs/proof/conformance.md.

None of it uses rmqd's own protocol code, whose mistakes it must not share.
"""
