"""Batches: a function over many items, each done once however often the process dies.

`handles` is what the caller holds, `options` what was asked for, `plan` the input held against what is recorded. `core` is the
batch in this process: `queue` says which item is next and how many run at once, `work` runs one, `results` are given to the
reader. `jobrun` is the job's run, with the limits that stop it, `jobs` a job read without running it.
"""
