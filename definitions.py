"""The reference deployment: the code location that ``workspace.yaml`` loads."""

import dagster as dg

from assets import ALL_PIPELINES
from dagster_ckpt import build_pipeline_definitions
from resources import COORDINATOR, SPARK
from sensors import ALL_SENSORS, OPTIONS

defs = dg.Definitions.merge(
    build_pipeline_definitions(*ALL_PIPELINES, coordinator=COORDINATOR, spark=SPARK, options=OPTIONS),
    dg.Definitions(sensors=ALL_SENSORS),
)
