"""``dagster_ckpt.core.rescaling.key_groups`` under its former name."""

import sys

from dagster_ckpt.core.rescaling import key_groups

sys.modules[__name__] = key_groups
