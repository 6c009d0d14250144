"""State of agents: versioned JSON by (namespace, agent, key).

`run_state` is a run's own part (`run.state`, `run.context`), `statehouse` the client of all of it, over a store that is opened
here (`embedded`) or a server (`remote`); `reads` is what both are asked alike. `table` has the rows of plug-ins.
"""
