"""Steps: functions that are done once over all lives of a run.

`spec` is what a step is, `life` what becomes of it from its opening to its record, `memory` what earlier lives recorded,
`journal` what is written. `divergence` and `doubt` are the two reasons to refuse a step; `beside` tells when the order of steps
says nothing. `decorator` is `@outlast.step`.
"""

from .life import begin as begin
from .memory import Memory as Memory
from .spec import StepSpec as StepSpec, is_async as is_async, key_of as key_of, nested as nested
