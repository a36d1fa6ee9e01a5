"""A plain program with our decorators: what each of its queries becomes, or the sentence that says why it does not."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from shlex import quote

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.attach.queries import NO_REPLAY, SESSION_LOCATION
from dagster_ckpt.ext.attach.steps import ProgramText, Statement, chain_of, names_read
from dagster_ckpt.ext.attach.writers import CHECKPOINT_LOCATION, WriterNotes

_Calls = list[tuple[str, ast.Call | None]]
_TABLES = {"", "delta", "parquet", "orc", "json", "csv"}
_STARTS = ("start", "toTable")
_WAITS = {"awaitTermination", "awaitAnyTermination", "processAllAvailable", "stop", "setLogLevel"}
_READS = {"load", "json", "parquet", "csv", "orc", "text", "table"}
_FIELDS = {"format": "format", "queryName": "query_name", "outputMode": "output_mode"}
_OURS = (
    "SparkSessionResource",
    "build_pipeline_definitions",
    "checkpointed_pipeline",
    "spark_sink",
    "spark_source",
)


@dataclass(kw_only=True)
class AdoptedProgram:
    """Program as it would be, and what is to be known of it."""

    diff: str = ""
    """Unified; empty: no query of it can be taken over."""
    program: str = ""
    takes_over: str = ""
    """Command that makes the queries' directories its first savepoint."""
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """A sentence for each query that it cannot have."""


@dataclass(kw_only=True)
class _Query:
    place: int
    uid: str
    told: WriterNotes
    frame: ast.expr
    needs: list[int]


class _Session:
    """Name and settings of the session. Raises InvalidRequest for one that the text does not say."""

    def __init__(self, text: ProgramText, first_query: int) -> None:
        self.conf = dict[str, str]()
        self.given: dict[str, object] = {}
        made = [one for one in text.steps if "getOrCreate" in _names(one)]
        target = getattr(made[0].node, "targets", [None])[0] if made else None
        targets = [
            t for one in text.steps for t in getattr(one.node, "targets", []) if isinstance(t, ast.Name)
        ]
        if (
            len(made) != 1
            or not isinstance(target, ast.Name)
            or sum(one.id == target.id for one in targets) != 1
        ):
            raise InvalidRequest("no `name = SparkSession.builder…getOrCreate()`, once, makes its session")
        self.name = target.id
        for place, step in enumerate(text.steps):
            names, calls = _names(step), chain_of(_value(step))[1]
            is_of_session = self.name in step.binds and not isinstance(step.node, ast.Assign)
            if step is made[0] or (is_of_session and names[:2] == ["conf", "set"] and place < first_query):
                for name, call in calls:
                    values = [text.literal(one) for one in call.args] if call else []
                    if name in ("config", "set") and len(values) == 2 and None not in values:
                        self.conf[str(values[0])] = str(values[1])
                    elif name in ("appName", "master") and values and values[0] is not None:
                        self.given["app_name" if name == "appName" else name] = values[0]
                    elif name not in ("builder", "getOrCreate", "conf"):
                        raise InvalidRequest(
                            f"line {step.node.lineno}: `{name}` of the session is no literal"
                        )
            elif is_of_session and names[-1:] != ["register"] and not _only_waits(step, self.name):
                raise InvalidRequest(f"line {step.node.lineno} changes the session: {ast.unparse(step.node)}")
        self.given["conf"] = self.conf


class _Rewriting:
    def __init__(self, text: ProgramText, pipeline: str) -> None:
        self.text, self.pipeline, self.refusals = text, pipeline, list[str]()
        self.starts = [place for place, step in enumerate(text.steps) if _starts(step)]
        self.session = _Session(text, min(self.starts, default=len(text.steps)))
        calls = [chain_of(one)[1] for one in ast.walk(text.tree) if isinstance(one, ast.Call)]
        self.written = {
            _plain(place)
            for chain in calls
            if any(name == "writeStream" for name, _ in chain)
            for place in self._places(*chain[-1])
        }

    def _places(self, name: str, call: ast.Call | None) -> list[str]:
        """Return the literals by which a call says where a query writes."""
        args = call.args if call else []
        if name in _STARTS:
            named = [one.value for one in call.keywords if one.arg in ("path", "tableName")] if call else []
            args = [*args[:1], *named]
        elif name != "option" or self.text.literal(args[0] if args else None) not in ("path", "topic"):
            return []
        return [one for one in map(self.text.literal, args[-1:]) if one]

    def queries(self) -> list[_Query]:
        """Return the queries that can be taken over; of all others a sentence is kept."""
        found: list[_Query] = []
        seen = set[int]()
        for place in self.starts:
            node = self.text.steps[place].node
            seen |= {id(one) for one in ast.walk(node)}
            try:
                query = self._query(place)
                if any(one.uid == query.uid for one in found):
                    raise InvalidRequest(f"another query is called {query.uid!r}, too: give it a queryName")
                found.append(query)
            except InvalidRequest as error:
                self.refusals.append(f"the query of line {node.lineno} stays as it is: {error}")
        for one in ast.walk(self.text.tree):
            if isinstance(one, ast.Attribute) and one.attr == "writeStream" and id(one) not in seen:
                self.refusals.append(
                    f"the query of line {one.end_lineno} stays as it is: it starts in a loop, a condition, a `try` or "
                    "a function, or its writer is kept in a variable: start it in one chain, in the program's own order"
                )
        return found

    def _query(self, place: int) -> _Query:
        step = self.text.steps[place]
        calls = chain_of(_value(step))[1]
        at = [name for name, _ in calls].index("writeStream")
        told = self._told(calls[at + 1 :])
        whole = self.session.conf.get(SESSION_LOCATION)
        if not told.option(CHECKPOINT_LOCATION) and whole and told.query_name:
            told.note(CHECKPOINT_LOCATION, f"{whole}/{told.query_name}")
        where = told.option(CHECKPOINT_LOCATION)
        if not where:
            raise InvalidRequest("it has no checkpointLocation, so there is nothing to go on from")
        uid = re.sub(r"\W+", "_", told.query_name or Path(where).name).strip("_")
        uid = uid if uid.isidentifier() and not keyword.iskeyword(uid) else f"query_{uid}"
        frame = next(
            n.value for n in ast.walk(step.node) if isinstance(n, ast.Attribute) and n.attr == "writeStream"
        )
        needs = self.text.needed(names_read(frame), place, self.session.name)
        given = [
            step for step in (self.text.steps[one] for one in needs) if not isinstance(step.node, ast.Expr)
        ]
        bound = {name for one in given for name in one.binds}
        if both := bound & {name for one in self.text.steps if one.is_import for name in one.binds}:
            raise InvalidRequest(f"{', '.join(sorted(both))} is imported, and is given another value")
        query = _Query(place=place, uid=uid, told=told, frame=frame, needs=needs)
        self._check(query)
        return query

    def _literal(self, node: ast.expr | None, of: str) -> str:
        found = self.text.literal(node)
        if found is None:
            raise InvalidRequest(f"its {of} is computed: write it out, as text or a constant of the program")
        return found

    def _told(self, calls: _Calls) -> WriterNotes:
        """Return a writer's notes. Raises InvalidRequest for what has no word here."""
        told = WriterNotes()
        for name, call in calls:
            args = call.args if call else []
            named = {one.arg or "**": one.value for one in call.keywords} if call else {}
            if name in ("foreachBatch", "foreach"):
                raise InvalidRequest(f"where the function of {name} writes is not to be seen")
            if name in _FIELDS:
                named = dict(zip([name], [*args, *named.values()], strict=False))
            elif name == "option":
                key = self._literal(args[0] if args else named.get("key"), "option")
                named = {key: args[1] if args[1:] else named["value"]}
            elif name in _STARTS:
                named |= {"path": args[0]} if args else {}
            elif name == "trigger" and "continuous" not in named:
                continue
            elif name not in {"options", *_WAITS}:
                raise InvalidRequest(f"its writer has {name}, for which there is no word here")
            for key, value in {} if name in _WAITS else named.items():
                if key in _FIELDS:
                    setattr(told, _FIELDS[key], self._literal(value, key))
                else:
                    told.note("path" if key == "tableName" else key, self._literal(value, key))
        if told.format not in _TABLES:
            raise InvalidRequest(f"what {told.format} keeps is no table of rows")
        if told.output_mode.lower() != "append":
            raise InvalidRequest(f"{told.output_mode} rows need a sink with a key: write it by hand")
        return told

    def _check(self, query: _Query) -> None:
        """Raise InvalidRequest for a query that needs what is not there, or reads what a query writes."""
        steps = [self.text.steps[place].node for place in query.needs if not self.text.steps[place].is_import]
        names = set[str]()
        for one in (part for piece in [*steps, query.frame] for part in ast.walk(piece)):
            name = one.attr if isinstance(one, ast.Attribute) else one.id if isinstance(one, ast.Name) else ""
            names.add(name)
            where = f"line {getattr(one, 'lineno', 0)}"
            if name in ("argv", "parse_args", "input"):
                raise InvalidRequest(f"{where} reads the program's arguments: write their values out")
            if name == "writeStream":
                raise InvalidRequest(f"it needs {where}, which starts a query")
            text = self.text.literal(one)
            if text is not None and any(_overlap(_plain(text), place) for place in self.written):
                raise InvalidRequest(
                    f"it reads what a query of the program writes ({text}): let it read that stage"
                )
            last, call = (
                chain_of(one)[1][-1] if isinstance(one, ast.Call) and chain_of(one)[1] else ("", None)
            )
            text = self.text.literal(call.args[0]) if call and call.args else None
            if last == "format" and text in NO_REPLAY:
                raise InvalidRequest(f"{NO_REPLAY[text]} cannot be read again")
            if last in _READS and call and call.args and text is None and len(self.starts) > 1:
                raise InvalidRequest(
                    f"{where} computes what it reads, which another query may write: write it out"
                )
        if "readStream" not in names:
            raise InvalidRequest("where it reads is not to be seen: no `readStream` leads to it")

    def program(self, queries: list[_Query], base: str) -> str:
        """Return the program with our decorators. Raises InvalidRequest for a name that it would have twice."""
        used = {name for query in queries for place in query.needs for name in self.text.steps[place].uses}
        used |= {name for query in queries for name in names_read(query.frame)} | {"*", "annotations"}
        imports = [step for step in self.text.steps if step.is_import and step.binds & used]
        ours = sorted([*_OURS, *(["CheckpointCoordinatorResource"] if base else [])])
        taken = {"pipeline", "defs", *ours, *(f"{query.uid}_table" for query in queries)}
        if clash := sorted({name for step in imports for name in step.binds} & taken):
            raise InvalidRequest(f"the program would have two meanings of {', '.join(clash)}: rename its own")
        taken |= {*dir(builtins), *(name for step in imports for name in step.binds)}
        parts = [
            "\n".join(
                [
                    *(one.text() for one in imports if "annotations" in one.binds),
                    f"from dagster_ckpt import {', '.join(ours)}",
                    *(one.text() for one in imports if "annotations" not in one.binds),
                ]
            )
        ]
        edges = ""
        for query in queries:
            name = f"{query.uid}_rows" if query.uid in taken else query.uid
            parts.append(self._stages(query, name))
            edges += f"\n    {query.uid}_table({name}())"
        given = ", ".join(f"{name}={value!r}" for name, value in self.session.given.items())
        where = f"    coordinator=CheckpointCoordinatorResource(base_dir={base!r}),\n" if base else ""
        parts += [
            f'@checkpointed_pipeline(name="{self.pipeline}")\ndef pipeline():{edges}',
            f"defs = build_pipeline_definitions(\n    pipeline,\n{where}    spark=SparkSessionResource({given}),\n)\n",
        ]
        return "\n\n\n".join(parts)

    def _stages(self, query: _Query, name: str) -> str:
        segment = ast.get_source_segment(self.text.source, query.frame) or ""
        lines = [f"    {self.session.name} = spark"] if self.session.name != "spark" else []
        lines += [self.text.steps[place].text("    ") for place in query.needs]
        lines += [f"    return (\n        {segment}\n    )" if "\n" in segment else f"    return {segment}"]
        settings = f'(uid="{query.uid}")' if name != query.uid else ""
        source = "\n".join([f"@spark_source{settings}", f"def {name}(spark):", *lines])
        return f"{source}\n\n\n@spark_sink\ndef {query.uid}_table({name}):\n    return {name}"


def adopted_program(file: Path, *, pipeline: str, base: str = "") -> AdoptedProgram:
    """Return a plain program with our decorators. It is read, and not run.

    Raises InvalidRequest for what is no Python, has no query, or has a session that its text does not say.
    """
    text = ProgramText(file)
    if "writeStream" not in text.source:
        raise InvalidRequest(f"{file} starts no streaming query: there is no `writeStream` in it")
    work = _Rewriting(text, pipeline)
    queries = work.queries()
    made = AdoptedProgram(refusals=work.refusals)
    if not queries:
        return made
    made.program = work.program(queries, base)
    ast.parse(made.program)
    made.diff = "".join(
        unified_diff(text.source.splitlines(True), made.program.splitlines(True), str(file), str(file))
    )
    places = " ".join(f"{one.uid}={quote(one.told.option(CHECKPOINT_LOCATION))}" for one in queries)
    made.takes_over = f"dagster-ckpt adopt {pipeline} {places}"
    for one in queries:
        made.notes.append(
            f"{one.uid}: rows so far stay in {one.told.option('path') or 'its sink'}, later ones come into the Delta "
            f"table {one.uid}_table"
        )
    used = {place for one in queries for place in (one.place, *one.needs)}
    left = [one for p, one in enumerate(text.steps) if p not in used and not _is_over(one, work.session.name)]
    if left:
        made.notes.append(
            f"left out, as no query needs it: line {', '.join(str(one.node.lineno) for one in left)}"
        )
    return made


def _value(step: Statement) -> ast.expr | None:
    return step.node.value if isinstance(step.node, ast.Expr | ast.Assign) else None


def _only_waits(step: Statement, session: str) -> bool:
    chains = [chain_of(one) for one in ast.walk(step.node) if isinstance(one, ast.Call)]
    return all(
        calls[-1][0] in _WAITS for start, calls in chains if calls and getattr(start, "id", "") == session
    )


def _is_over(step: Statement, session: str) -> bool:
    """Return whether a pipeline needs no word for it: an import, a constant, the session, waiting for a query."""
    start, calls = chain_of(_value(step))
    is_session = getattr(start, "id", "") in (session, "SparkSession")
    return (
        step.is_import
        or is_session
        or isinstance(start, ast.Constant)
        or bool(calls and calls[-1][0] in _WAITS)
    )


def _names(step: Statement) -> list[str]:
    return [name for name, _ in chain_of(_value(step))[1]]


def _starts(step: Statement) -> bool:
    names = _names(step)
    at = next((n for n, name in enumerate(names) if name in _STARTS), 0)
    return (
        names.count("writeStream") == 1 and names.index("writeStream") < at and set(names[at + 1 :]) <= _WAITS
    )


def _plain(place: str) -> str:
    return re.sub(r"^file:/+", "/", place).rstrip("/")


def _overlap(one: str, other: str) -> bool:
    return bool(one) and (f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/"))
