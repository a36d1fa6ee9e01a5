"""The reference deployment: the code location that ``workspace.yaml`` loads."""

import dagster as dg

from assets import ALL_PIPELINES
from assets.reports import delays_report
from dagster_ckpt import build_location_definitions
from resources import COORDINATOR, SPARK
from sensors import ALL_SENSORS, OPTIONS

defs = dg.Definitions.merge(
    build_location_definitions(ALL_PIPELINES, coordinator=COORDINATOR, spark=SPARK, options=OPTIONS),
    dg.Definitions(
        assets=[delays_report], sensors=ALL_SENSORS, resources={"checkpoint_coordinator": COORDINATOR}
    ),
)
