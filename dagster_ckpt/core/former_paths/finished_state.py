"""``dagster_ckpt.core.restore.finished_state`` under its former name."""

import sys

from dagster_ckpt.core.restore import finished_state

sys.modules[__name__] = finished_state
