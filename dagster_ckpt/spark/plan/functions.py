"""Python of a stage, which no plan shows: digests of its functions, and its variables of transformWithState.

Their names are in no plan: a processor declares them when it is initialized. Spark asks a copy of it on the driver when
it plans the first batch, and compares the types of those it knows; so is a copy asked here, before the query starts,
for the names. Of the fields of a variable Spark keeps the places only: two that changed places would be exchanged.
Where a processor cannot be asked, what Spark has written beside the state tells, in the first batch.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.java.plans import analyzed_plan, nodes_of
from dagster_ckpt.spark.plan.tree import Tree, kind_of, walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNREADABLE = "unreadable"
"""Digest of a function that closes over something that cannot be looked at; it is never the same."""
MADE_FROM = "made_from"
"""Attribute of a front end's function: digests of the files that say what it does, which its own code does not."""
_LINES = 20_000
"""Lines of text that count, so that a start does not wait for a module that holds a million values."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def digest_of(function: Callable[..., Any]) -> str:
    """Return a digest of a function's code, of what it closes over, and of what it calls in its own package.

    Behind the version of Python whose byte code it is of (``3.11:…``). Objects that are no plain values count by their
    type only: nothing is called, and nothing of a session or a client is looked at. ``UNREADABLE`` where that fails.
    """
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    own = getattr(function, MADE_FROM, None)
    try:
        text = "\n".join(islice(_said(own or function, package, set()), _LINES))
    except Exception:  # a user's object that cannot be looked at: no start may fail for it
        return UNREADABLE
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{version}:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def may_mean_another(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the stages whose code is another one than it was, those of byte code that cannot be compared included."""
    return sorted(
        uid
        for uid, digest in now.items()
        if uid in before and (before[uid] != digest or digest == UNREADABLE)
    )


def _said(thing: Any, package: str, seen: set[int]) -> Iterator[str]:
    """Yield lines that say a value, the same in every process."""
    inner = _wrapped(thing)
    if inner is not None:
        yield type(thing).__name__
        if isinstance(thing, partial):
            for given in (thing.args, thing.keywords):
                yield from _said(given, package, seen)
        thing = inner
    if isinstance(thing, _PLAIN):
        yield repr(thing)
    elif id(thing) in seen:
        yield "again"
    elif isinstance(thing, FunctionType | type):
        seen.add(id(thing))
        yield from _defined(thing, package, seen)
    elif isinstance(thing, Mapping):
        seen.add(id(thing))
        for key in sorted(thing, key=repr):
            yield from (*_said(key, package, seen), *_said(thing[key], package, seen))
    elif isinstance(thing, Set):
        yield from sorted("".join(_said(one, package, seen)) for one in thing)
    elif isinstance(thing, list | tuple):
        seen.add(id(thing))
        for one in thing:
            yield from _said(one, package, seen)
    else:
        yield thing.__name__ if isinstance(thing, ModuleType) else type(thing).__qualname__


def _wrapped(thing: Any) -> Any:
    """Return the function in a decorated one, in a user-defined function of Spark's, or in a partial; else None."""
    if isinstance(thing, partial):
        return thing.func
    own = None if isinstance(thing, type) else getattr(thing, "__dict__", None)
    found = own.get("__wrapped__", own.get("func")) if isinstance(own, Mapping) else None
    return found if isinstance(found, FunctionType) else None


def _defined(thing: FunctionType | type, package: str, seen: set[int]) -> Iterator[str]:
    """Yield the code of a function or a class of the user's own package, however its file is called; else the name."""
    top, _, inner = str(thing.__module__).partition(".")
    yield f"{inner if top == package else thing.__module__}.{thing.__qualname__}"
    if top != package:
        return
    if isinstance(thing, type):
        for name, member in sorted(vars(thing).items()):
            if isinstance(member, (FunctionType, *_PLAIN)) and name not in ("__module__", "__doc__"):
                yield from (name, *_said(member, package, seen))
        return
    yield from _written(thing.__code__, thing.__doc__)
    # A list made here would lend its id to the next one.
    for given in (thing.__defaults__, thing.__kwdefaults__):
        yield from _said(given, package, seen)
    for cell in thing.__closure__ or ():
        yield from _said(_content(cell), package, seen)
    for name in _global_names(thing.__code__):
        if name in thing.__globals__:
            yield from (name, *_said(thing.__globals__[name], package, seen))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _written(code: CodeType, doc: str | None = None) -> Iterator[str]:
    yield code.co_code.hex()
    yield " ".join((*code.co_names, *code.co_varnames))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _written(constant)
        elif constant not in (doc, None):  # in the place of a docstring that there is not is None
            yield repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


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
