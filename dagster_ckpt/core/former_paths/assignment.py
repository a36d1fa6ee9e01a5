"""``dagster_ckpt.core.rescaling.assignment`` under its former name."""

import sys

from dagster_ckpt.core.rescaling import assignment

sys.modules[__name__] = assignment
