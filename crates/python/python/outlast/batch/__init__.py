"""Batches: a function over many items, each done once however often the process dies.

`handles` is what the caller holds, `options` what was asked for, `source` the input, `plan` the input held against what is
recorded. `core` is the batch in this process: `queue` says which item is next, `width` how many run at once, `work` runs one,
`outcomes` gives results to the reader, `limits` and `alike` stop the batch. `jobrun` is the job's run, `jobs` a job read
without running it.
"""
