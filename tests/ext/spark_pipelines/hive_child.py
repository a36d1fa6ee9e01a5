"""A project with a metastore of its own, in its own process: ``python -m tests.ext.spark_pipelines.hive_child``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dagster_ckpt import CheckpointCoordinatorResource, pipeline_from_spark_project, run_epoch
from dagster_ckpt.spark.session import build_session
from tests.spark_session import BRIEF_JVM


def main(root: Path, what: str) -> None:
    conf = {
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={root}",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(root / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={root / 'metastore_db'};create=true",
    }
    spark = build_session("hive", master="local[2,3]", conf=conf)
    for step in what.split(","):
        if step == "run":
            where = CheckpointCoordinatorResource(base_dir=str(root / "lab"), table_dir=str(root / "tables"))
            run_epoch(pipeline_from_spark_project(root, spark=spark), coordinator=where, spark=spark)
        else:
            print(
                *(sorted(map(tuple, spark.table(name).collect())) for name in ("orders", "newest", "counted"))
            )


if __name__ == "__main__":
    os.environ.setdefault("SPARK_SUBMIT_OPTS", BRIEF_JVM)
    main(Path(sys.argv[1]), sys.argv[2])
