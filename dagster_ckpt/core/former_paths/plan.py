"""``dagster_ckpt.core.checkpoint.plan`` under its former name."""

import sys

from dagster_ckpt.core.checkpoint import plan

sys.modules[__name__] = plan
