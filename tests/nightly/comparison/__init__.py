"""The same requests, sent to a real broker and to the embedded broker, and their responses, compared field by field.

`script` has the requests, `traffic` sends them, and `bodies` decodes the responses. `rules` generalises values that
cannot be equal (times, ids, addresses). `differences` lists the accepted differences with reasons, which
docs/proof/conformance.md shows.

None of these modules uses rmqd's protocol code, because they must not share its mistakes.
"""
