"""``dagster_ckpt.core.restore.matching`` under its former name."""

import sys

from dagster_ckpt.core.restore import matching

sys.modules[__name__] = matching
