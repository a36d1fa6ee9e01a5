"""Savepoints of the flights pipeline that no clock knows the time of."""

from assets.flights import flights_pipeline
from dagster_ckpt import after_checkpoints, build_savepoint_sensor
from resources import COORDINATOR

SAVEPOINT_BEFORE_LONG_HISTORY = build_savepoint_sensor(
    flights_pipeline, after_checkpoints(100), coordinator=COORDINATOR
)
