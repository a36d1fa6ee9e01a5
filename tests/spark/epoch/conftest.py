"""A lab, and what its pipeline reads."""

from tests.lab.lab import lab
from tests.spark.epoch.small_pipeline import feed, small_feed

__all__ = ["feed", "lab", "small_feed"]
