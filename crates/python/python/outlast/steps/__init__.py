"""Steps: functions that are done once over all lives of a run.

`spec` is what a step is, `life` what becomes of it from its opening to its record, `memory` what earlier lives recorded.
`decorator` is `@outlast.step`.
"""
