"""Groups of attributes of the component. Annotations are evaluated: Dagster resolves YAML by them."""

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field, create_model, model_validator

from dagster_ckpt.core.config import refuse_unknown
from dagster_ckpt.dagster.options import Launch, SavepointSchedule
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.dagster.supervision import RestartPolicy
from dagster_ckpt.errors import InvalidRequest


class Attributes(dg.Model, dg.Resolvable):
    """Attributes in YAML; an unknown one is refused with the nearest that is there."""

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Return the model by which Dagster reads the YAML."""
        return _with_near_names(super().model())


@cache
def _with_near_names(model: type[BaseModel]) -> type[BaseModel]:
    def check(given: Any) -> Any:
        if isinstance(given, dict):
            refuse_unknown(given, model.model_fields, of="attributes")
        return given

    # pydantic takes the decorated function so; its annotation names the undecorated one only
    validators: dict[str, Any] = {"near_names": model_validator(mode="before")(check)}
    return create_model(model.__name__, __base__=model, __validators__=validators)


Secret = str | dict[str, str]
"""Text, or ``env: NAME``: read from the environment in each run, and so never recorded."""


def secret(given: Secret, *, attribute: str) -> Any:
    """Return the value for a resource: text, or what Dagster reads in a run only. Raises InvalidRequest."""
    if isinstance(given, str):
        return given
    if set(given) != {"env"} or not given["env"]:
        raise InvalidRequest(
            f"{attribute} is text, or one key 'env' with the name of an environment variable: {{env: NAME}}"
        )
    return dg.EnvVar(given["env"])


def secrets(given: dict[str, Secret], *, attribute: str) -> dict[str, Any]:
    """Return a mapping for a resource; its values as ``secret``."""
    return {name: secret(value, attribute=f"{attribute}.{name}") for name, value in given.items()}


def named(path: str, *, attribute: str) -> Any:
    """Return the object that ``package.module:name`` names. Raises InvalidRequest."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidRequest(
            f"{attribute}: {path!r} cannot be imported ({error}): give package.module:name"
        ) from error


def function_named(path: str, *, attribute: str) -> Callable[..., Any]:
    """Return the function that ``package.module:name`` names. Raises InvalidRequest."""
    found = named(path, attribute=attribute)
    if not callable(found):
        raise InvalidRequest(f"{attribute}: {path!r} is not a function")
    return found  # type: ignore[no-any-return]


class SavepointAttributes(Attributes):
    """Scheduled savepoints."""

    cron_schedule: str = Field(description="Five cron fields.", examples=["0 3 * * *"])
    timezone: str = Field(default="UTC", description="Timezone of the cron schedule.")
    retain: int | None = Field(default=None, description="Keep at least this many of them.")
    retain_days: float | None = Field(default=None, description="Keep all that are younger than this.")
    target: str = Field(default="", description="fsspec URI to write below; default: savepoint_dir.")

    def schedule(self) -> SavepointSchedule:
        """Return the schedule. Raises InvalidRequest for bounds that mean nothing."""
        return SavepointSchedule(
            cron_schedule=self.cron_schedule,
            timezone=self.timezone,
            keep_last=self.retain,
            keep_for=None if self.retain_days is None else timedelta(days=self.retain_days),
            target=self.target,
        )


class AlarmAttributes(Attributes):
    """Alarm thresholds."""

    after_failures: int | None = Field(default=3, description="Consecutive failed checkpoints.")
    max_age_seconds: float | None = Field(
        default=None, description="Age of the newest checkpoint; freshness and checkpoint_age follow it."
    )
    notify: str = Field(
        default="",
        description="Function called with each AlarmMessage, as package.module:name.",
        examples=["my_project.alarms:post_to_chat"],
    )


class RestartAttributes(Attributes):
    """Start the pipeline again after its run failed."""

    max_restarts: int = Field(default=3, description="In a row, without a completed checkpoint in between.")
    delay_seconds: float = Field(default=10.0, description="Before the first restart; doubles.")

    def policy(self) -> RestartPolicy:
        """Return the policy. Raises InvalidRequest for values that mean nothing."""
        return RestartPolicy(max_restarts=self.max_restarts, delay=self.delay_seconds)


_EXECUTORS = {"in_process": dg.in_process_executor, "multiprocess": dg.multiprocess_executor}


class ExecutorAttributes(Attributes):
    """Executor of the steps of a run."""

    name: str = Field(
        description="in_process, multiprocess, or an executor of Dagster's as package.module:name.",
        examples=["multiprocess", "dagster_k8s:k8s_job_executor"],
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="Its config.", examples=[{"max_concurrent": 2}]
    )

    def executor(self) -> dg.ExecutorDefinition:
        """Return the executor, configured. Raises InvalidRequest."""
        known = _EXECUTORS.get(self.name)
        if known is None and ":" not in self.name:
            raise InvalidRequest(
                f"executor.name: {self.name!r} is no executor: give {' or '.join(_EXECUTORS)}, or package.module:name"
            )
        found = known or named(self.name, attribute="executor.name")
        if not isinstance(found, dg.ExecutorDefinition):
            raise InvalidRequest(
                f"executor.name: {self.name!r} is no executor of Dagster's but {type(found).__name__}"
            )
        if not self.config:
            return found
        made = found.configured(self.config)
        checked = made.apply_config_mapping({"config": {}})
        if not checked.success:
            said = " ".join(error.message for error in checked.errors or ())
            raise InvalidRequest(f"executor.config does not fit {self.name}: {said}")
        return made


class LaunchAttributes(Attributes):
    """Runs the stages in a program that a Pipes client launches."""

    client: str = Field(
        default="dagster:PipesSubprocessClient",
        description="Pipes client, its class, or a function that returns one, as package.module:name.",
        examples=["my_project.clients:databricks"],
    )
    arguments: dict[str, Any] | str = Field(
        default_factory=dict,
        description="What the client's run takes; or a function of the op's context, as package.module:name.",
        examples=[{"command": ["python", "run_orders.py"]}],
    )

    def launch(self) -> Launch:
        """Return the launch. Raises InvalidRequest."""
        client = named(self.client, attribute="launch.client")
        if not isinstance(client, dg.PipesClient) and callable(client):
            try:
                client = client()
            except (TypeError, ValueError) as error:
                raise InvalidRequest(
                    f"launch.client: {self.client!r} cannot be called without arguments ({error}): name a function of "
                    "your own that returns the client"
                ) from error
        if isinstance(self.arguments, str):
            return Launch(
                client=client, arguments=function_named(self.arguments, attribute="launch.arguments")
            )
        return Launch(client=client, arguments=self.arguments)


class SparkAttributes(Attributes):
    """The Spark session of a run."""

    master: str = Field(default="local[*,3]", description="Spark master.")
    conf: dict[str, Secret] = Field(
        default_factory=dict, description="Spark settings; a secret as {env: NAME}."
    )

    class_archive: str = Field(
        default="", description="Folder `dagster-ckpt class-archive` filled: Spark starts in half the time."
    )

    ship_package: bool = Field(
        default=False,
        description="Send dagster_ckpt to executors that have none, or another version.",
    )
    warm_engine: str = Field(
        default="", description="Folder of a JVM that outlives the run, for the next run to use again."
    )
    warm_engine_idle: float | str = Field(
        default="10 min", description="Without a run for so long, the warm engine ends."
    )

    def resource(self, app_name: str, *, located: Callable[[str], str]) -> SparkSessionResource:
        """Return the session resource; ``located`` says where a folder of an attribute lies."""
        return SparkSessionResource(
            app_name=app_name,
            master=self.master,
            conf=secrets(self.conf, attribute="spark.conf"),
            class_archive=located(self.class_archive),
            ship_package=self.ship_package,
            warm_engine=located(self.warm_engine),
            warm_engine_idle=self.warm_engine_idle,
        )
