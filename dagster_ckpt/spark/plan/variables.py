"""Variables of ``transformWithState``: one that was renamed would begin empty, and Spark does not say so.

Their names are in no plan: a processor declares them when it is initialized. Spark asks a copy of it on the driver when
it plans the first batch, and compares the types of those it knows; so is a copy asked here, before the query starts,
for the names. Of the fields of a variable Spark keeps the places only: two that changed places would be exchanged.
Where a processor cannot be asked, what Spark has written beside the state tells, in the first batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.java.plans import analyzed_plan, nodes_of
from dagster_ckpt.spark.plan.tree import Tree, kind_of, walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_KEEPS = "TransformWithState"
_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"


def variables_in(frame: DataFrame, plan: Tree) -> dict[str, str] | None:
    """Return the fields of each variable, as Spark writes types; None: no processor could be asked.

    State in Avro has the fields' names in it: its variables have no fields here.
    """
    if not any(kind_of(node).startswith(_KEEPS) for node in walk(plan)):
        return {}
    try:
        found = list(_declared(frame))
    except Exception:  # a processor may need what only tasks have
        return None
    named = frame.sparkSession.conf.get(_ENCODING, "unsaferow") == "avro"
    return {name: "" if named else fields for name, fields in found}


def why_other_variables(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> str:
    """Return the variables that the state was not made by, in a sentence; empty: none, or nobody knows."""
    if before is None or now is None:
        return ""
    for name in before.keys() & now.keys():
        if before[name] and now[name] and before[name] != now[name]:
            return (
                f"the fields of its variable {name} were {before[name]} and are {now[name]} now, and Spark tells "
                "fields apart by their order only"
            )
    gone, new = sorted(before.keys() - now.keys()), sorted(now.keys() - before.keys())
    return _why_renamed(gone, new)


def _why_renamed(gone: list[str], new: list[str]) -> str:
    if not gone or not new:
        return ""
    return (
        f"it was kept in {', '.join(gone)}, and its processor has {', '.join(new)} instead, which would begin empty. "
        "Change the names back; or add the new variables, run once, and take the old ones away then"
    )


def _declared(frame: DataFrame) -> Iterator[tuple[str, str]]:
    """Yield name and fields of the variables that copies of the query's processors declare."""
    from pyspark.serializers import CPickleSerializer

    number = 0
    for node in nodes_of(analyzed_plan(frame)):
        if str(node.getClass().getSimpleName()).startswith(_KEEPS):
            command = bytes(node.functionExpr().func().command().unsafeArray())
            function, *_ = CPickleSerializer().loads(command)
            asked = _DeclaredVariables()
            function.__self__._stateful_processor.init(asked)
            number += 1
            for name, fields in asked.variables.items():
                yield name if number == 1 else f"{name} ({number})", fields


class _DeclaredVariables:
    """Stands in for the handle by which a processor declares its variables."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: Any = None) -> None:  # noqa: N802, N803
        """Note a value, or a list."""
        self.variables[stateName] = _spelt(schema)

    getListState = getValueState  # noqa: N815

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: Any,  # noqa: N803
        valueSchema: Any,  # noqa: N803
        ttlDurationMs: Any = None,  # noqa: N803
    ) -> None:
        """Note a map."""
        self.variables[stateName] = f"{_spelt(userKeySchema)} -> {_spelt(valueSchema)}"

    def __getattr__(self, name: str) -> Any:
        """Do nothing for what a processor asks for besides."""
        return lambda *arguments, **named: None


def _spelt(schema: Any) -> str:
    from pyspark.sql.types import _parse_datatype_string

    kind = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    return str(kind.simpleString())


def refuse_renamed_variables(query_dir: Path, batch_id: int) -> None:
    """Raise InvalidRequest where variables of state are gone and others are new: they may be the same.

    ``batch_id``: the query's first batch in this run, in which this is asked. Whose query it is, is told with what
    ends it.
    """
    for folder in sorted((query_dir / "state").glob("*/_metadata/v2")):
        written = folder / str(batch_id)
        earlier = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
        earlier = [number for number in earlier if number < batch_id]
        if not earlier or not written.exists():
            continue
        before, now = _variables(folder / str(max(earlier))), _variables(written)
        if why := _why_renamed(sorted(before - now), sorted(now - before)):
            written.unlink()  # Spark keeps what is there: the names would be these, also once they are changed back
            raise InvalidRequest(f"the variables of its state have changed: {why}")


def _variables(metadata: Path) -> set[str]:
    """Return the variables that an operator's metadata names; none for operators without any."""
    lines = metadata.read_text(encoding="utf-8").splitlines()
    document: Any = parse_json(lines[-1]) if len(lines) > 1 else {}
    properties: Any = parse_json(document.get("operatorPropertiesJson") or "{}")
    return {str(one["stateName"]) for one in properties.get("stateVariables", ())}
