"""The reference deployment's pipelines. What builds assets lives in ``dagster_ckpt/dagster/reports/asset.py``."""

from assets.flights import flights_fork, flights_pipeline

ALL_PIPELINES = (flights_pipeline, flights_fork)
