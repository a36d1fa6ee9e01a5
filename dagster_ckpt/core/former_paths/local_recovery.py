"""``dagster_ckpt.core.files.local_recovery`` under its former name, with a function under its former spelling."""

import sys

from dagster_ckpt.core.files import local_recovery

local_recovery.prioritise = local_recovery.prioritize  # type: ignore[attr-defined]  # codespell:ignore prioritise
sys.modules[__name__] = local_recovery
