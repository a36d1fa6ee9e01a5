"""``dagster_ckpt.core.files.retention`` under its former name."""

import sys

from dagster_ckpt.core.files import retention

sys.modules[__name__] = retention
