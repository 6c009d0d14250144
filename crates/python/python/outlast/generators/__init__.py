"""Generators: a generator's results, each computed once over any number of crashes.

`resume` is `resume_or_start` and what it returns, `job` one life of such a job, `opening` how it is found or made, with what
earlier lives stored. `inputs` stands in for the generator's argument, `jsonl` is the file of results.
"""
