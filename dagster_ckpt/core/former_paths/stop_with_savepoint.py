"""``dagster_ckpt.core.checkpoint.stop_with_savepoint`` under its former name."""

import sys

from dagster_ckpt.core.checkpoint import stop_with_savepoint

sys.modules[__name__] = stop_with_savepoint
