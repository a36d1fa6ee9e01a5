"""``dagster_ckpt.core.checkpoint.failures`` under its former name."""

import sys

from dagster_ckpt.core.checkpoint import failures

sys.modules[__name__] = failures
