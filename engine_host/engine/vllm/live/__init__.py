"""The scheduler that steers and tells of itself: vLLM's own, inside the engine core, with eyes and dials.

`scheduler` and what it imports run in the engine core's process: `steered` (what is wrapped around vLLM's scheduler),
`inside` (the parts put together there), `dials`, `steps`, `tally`, `blocks`, `capture`, `publisher`. `boards` and
`cores` run in the host. Between them is `engine_host.live`, memory without a lock.
"""
