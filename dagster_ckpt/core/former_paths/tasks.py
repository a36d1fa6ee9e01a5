"""``dagster_ckpt.core.checkpoint.tasks`` under its former name."""

import sys

from dagster_ckpt.core.checkpoint import tasks

sys.modules[__name__] = tasks
