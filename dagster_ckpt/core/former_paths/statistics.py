"""``dagster_ckpt.core.checkpoint.statistics`` under its former name, with a function under its former spelling."""

import sys

from dagster_ckpt.core.checkpoint import statistics

statistics.summarise = statistics.summarize  # type: ignore[attr-defined]  # codespell:ignore summarise
sys.modules[__name__] = statistics
