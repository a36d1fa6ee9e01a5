"""The code and the config of docs/how-to/blue-green.md load, and jobs are named as its chapters say."""

from __future__ import annotations

import re
from typing import Any

import dagster as dg
import pytest
import yaml

from dagster_ckpt import (
    CheckpointedPipeline,
    build_pipeline_definitions,
    checkpointed_pipeline,
    spark_sink,
    spark_source,
)
from tests.root import ROOT

PAGE = (ROOT / "docs" / "how-to" / "blue-green.md").read_text()
FORK, REPLAY = PAGE.split("## Replay a day")


def pipeline(name: str) -> CheckpointedPipeline:
    @spark_source
    def source(spark: Any) -> Any:
        return spark

    @spark_sink(key=["customer"])
    def totals(source: Any) -> Any:
        return source

    @checkpointed_pipeline(name=name)
    def made() -> None:
        totals(source())

    return made  # type: ignore[return-value]


@pytest.mark.parametrize(("text", "name"), [(FORK, "shop"), (REPLAY, "orders")], ids=["fork", "replay"])
def test_the_fork_of_the_page_has_the_jobs_of_the_page(text: str, name: str) -> None:
    names: dict[str, Any] = {
        name: pipeline(name),
        "new_version": lambda old: old,
        "build_pipeline_definitions": build_pipeline_definitions,
    }
    exec(
        compile("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), "blue-green.md", "exec"),
        names,
    )
    defs = names["defs"]
    dg.Definitions.validate_loadable(defs)
    jobs = {job.name for job in defs.resolve_all_job_defs()}
    told = set(re.findall(rf"[Jj]ob `({name}_\w+)`", text))
    assert told
    assert told <= jobs
    for config in re.findall(r"```yaml\n(ops:.*?)```", text, re.DOTALL):
        [care] = told
        assert dg.validate_run_config(defs.resolve_job_def(care), yaml.safe_load(config))


def test_a_pipeline_that_is_no_fork_is_not_compared() -> None:
    job = build_pipeline_definitions(pipeline("orders")).resolve_job_def("orders_care")
    config = {"ops": {"care": {"config": {"action": "compare"}}}}
    done = job.execute_in_process(run_config=config, raise_on_error=False)
    [failed] = done.get_step_failure_events()
    assert failed.step_failure_data.user_failure_data is not None
    assert failed.step_failure_data.user_failure_data.description == (
        "Run config of op 'care': action must be one of maintain, verify, requeue, got 'compare'"
    )
