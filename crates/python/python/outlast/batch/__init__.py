"""Batches: a function over many items, each of them done once, however often the process dies.

`options` checks what was asked, `source` reads the input, `plan` holds it against what is recorded, `queue` says which
item is next, `work` runs one item, `core` is the batch in this process, `handles` what the caller holds.
"""
