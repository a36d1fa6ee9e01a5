"""A reader whose Python process was slow to start: the one failure of a query that is cured by starting it again.

Spark gives the process ten seconds to connect, whatever else the machine is busy with; no setting changes that.
"""

from __future__ import annotations

MAX_START_ATTEMPTS = 6
"""How often one query of an attempt is started, the first time included."""
_SAYS = "Python worker failed to connect back"


def is_retryable_start(error: BaseException | None) -> bool:
    """Tell whether a query failed for this alone. Starting it later would then have been the same."""
    return error is not None and _SAYS in str(error)
