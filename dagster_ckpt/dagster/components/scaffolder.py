"""Scaffolder of ``dg scaffold defs dagster_ckpt.CheckpointedPipelineComponent``: YAML, a pipeline, its first rows."""

import dagster as dg
from pydantic import BaseModel, Field

from dagster_ckpt.core.ids import pipeline_id

_STAGES = '''"""Pipeline {name}: replace the source and the sink by your own."""

from pathlib import Path

from pyspark.sql import functions as f

from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source


ARRIVALS = Path(__file__).with_name("arrivals")


@spark_source
def numbers(spark):
    """Files of JSON lines, each read once; any source of Spark fits here that can read again from where it was."""
    return spark.readStream.schema("value LONG").json(str(ARRIVALS))


@spark_sink(key=["bucket"])
def totals(numbers):
    """One row per bucket, kept up to date; a Delta table."""
    return numbers.groupBy((f.col("value") % 10).alias("bucket")).count()


@checkpointed_pipeline(name="{name}")
def {function}() -> None:
    """Count numbers per bucket."""
    totals(numbers())
'''

_NUMBERS = 100
"""In the file that the scaffolded pipeline reads first."""

_SECRETS = """
# Passwords and keys are named, not written here: Dagster records attributes with every run.
#   store_url: {env: CHECKPOINT_STORE_URL}
#   storage_options: {secret: {env: S3_SECRET}}
"""


class PipelineParams(BaseModel):
    """Options of ``dg scaffold defs``."""

    pipeline: str = Field(default="my_pipeline", description="Name of the pipeline.")
    savepoint_cron: str = Field(
        default="", description="Cron schedule of savepoints; empty: none are scheduled."
    )


class PipelineScaffolder(dg.Scaffolder[PipelineParams]):
    """Writes ``defs.yaml``, ``stages.py`` and the first file the pipeline reads."""

    @classmethod
    def get_scaffold_params(cls) -> type[PipelineParams]:
        """Return the options."""
        return PipelineParams

    def scaffold(self, request: dg.ScaffoldRequest[PipelineParams]) -> None:
        """Write them. Raises InvalidRequest for a name that could not name a folder."""
        # Dagster hands over None where no option was given.
        params = request.params or PipelineParams()
        name = pipeline_id(params.pipeline)
        attributes: dict[str, object] = {"pipeline": str(name), "base_dir": f"./.checkpointed/{name}"}
        if params.savepoint_cron:
            attributes["savepoints"] = {"cron_schedule": params.savepoint_cron, "retain": 7}
        dg.scaffold_component(request, attributes)
        with (request.target_path / "defs.yaml").open("a") as file:
            file.write(_SECRETS)
        function = "".join(c if c.isalnum() else "_" for c in name)
        if not function[0].isalpha():
            function = f"pipeline_{function}"
        (request.target_path / "stages.py").write_text(_STAGES.format(name=name, function=function))
        arrivals = request.target_path / "arrivals"
        arrivals.mkdir(exist_ok=True)
        lines = "".join(f'{{"value": {value}}}\n' for value in range(_NUMBERS))
        (arrivals / "0001.json").write_text(lines)
