"""The reference deployment's sensors, and how its pipelines are looked after.

What builds sensors lives in ``dagster_ckpt/dagster/sensors/``; most of them come with ``build_pipeline_definitions``.
"""

from sensors.care import OPTIONS
from sensors.reports import REFRESH_REPORTS
from sensors.savepoints import SAVEPOINT_BEFORE_LONG_HISTORY

ALL_SENSORS = [SAVEPOINT_BEFORE_LONG_HISTORY, REFRESH_REPORTS]

__all__ = ["ALL_SENSORS", "OPTIONS"]
