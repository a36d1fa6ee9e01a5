"""Values and types that a target can hold: each sink declares them; columns are compared at a stage's start, rows while
they are prepared.

Every rule is SQL of one row, so that it is judged where the row is, in the query's own plan. Pure: text in, text out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBERS = frozenset({"long", "integer", "short", "byte", "float", "double", "decimal"})
PLAIN = _NUMBERS | {"string", "boolean", "binary", "date", "timestamp", "timestamp_ntz"}
"""Spark's types of one value that every table has, as its schemas spell them in JSON."""
NESTED = frozenset({"struct", "array", "map"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRule:
    """Values of some types that a target cannot hold, at any depth of a column."""

    types: frozenset[str]
    broken: str
    """SQL that is true of such a value, which is called ``{0}``."""
    what: str
    """The values, for people: ``text that is no UTF-8``."""
    way_out: str
    """What the sink's function can make of them."""
    quick: tuple[str, bool] | None = None
    """A question that says as much as ``broken`` and is answered sooner (``asked_of_bytes``), and the wrong answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """Values of certain columns, such as a key's, that a target cannot hold together."""

    columns: tuple[str, ...]
    types: frozenset[str] | None = None
    """Only those of the columns that have such a type are meant; None: all."""
    broken: Callable[[Sequence[str]], str]
    """Returns the SQL that is true of such values, which are called so."""
    what: str
    way_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRule:
    """Rows that a target cannot hold: the seam at which they are refused, or could be split off."""

    column: str
    """Column, or part of one (``address.street``), as people are told of it."""
    broken: str
    """SQL that is true of such a row."""
    example: str
    """SQL that is the wrong value of such a row."""
    what: str
    way_out: str
    quick: tuple[str, bool] | None = None
    """As in ``ValueRule``, of ``example``; None: there is none, or it is a rule of what is in arrays and maps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRule:
    """Names that a target's columns cannot have."""

    broken: Callable[[str], bool]
    what: str
    """What is wrong with such a name: ``has a character that a Delta table refuses``."""
    of_fields: bool = True
    """Fields of structs have to be named so, too."""


_TEXT = frozenset({"string"})
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Folder of rows that have no value in a column of partitions."""
_FOLDER = 255
"""Bytes that file systems keep of a folder's name."""
UTF8 = ValueRule(
    types=_TEXT,
    broken="NOT is_valid_utf8({0})",
    what="text that is no UTF-8",
    way_out="read it in its own encoding (option 'encoding', or decode), replace what is wrong (make_valid_utf8), or "
    "keep the bytes (cast to binary)",
    quick=("is UTF-8", False),
)
_HAS_NUL = "contains(CAST({0} AS BINARY), X'00')"
"""By its bytes: a collation may pass over the character."""
NO_NUL = ValueRule(
    types=_TEXT,
    broken=_HAS_NUL,
    what="text with the character NUL",
    way_out="leave it out (replace(…, chr(0), ''))",
    quick=("has NUL", True),
)
NO_NAN = ValueRule(
    types=frozenset({"float", "double"}),
    broken="isnan({0})",
    what="NaN",
    way_out="filter such rows out, or give the column a default (nanvl)",
)
_YEARS = "outside of the years 1 to 9999"
YEARS = (
    ValueRule(
        types=frozenset({"date"}),
        broken="({0} < DATE '0001-01-01' OR {0} > DATE '9999-12-31')",
        what=f"a date {_YEARS}",
        way_out="filter such rows out, or keep it as text",
    ),
    ValueRule(
        types=frozenset({"timestamp"}),
        broken="({0} < TIMESTAMP '0001-01-01 00:00:00Z' OR {0} > TIMESTAMP '9999-12-31 23:59:59.999999Z')",
        what=f"a time {_YEARS}, in UTC",
        way_out="filter such rows out, or keep it as text",
    ),
    ValueRule(
        types=frozenset({"timestamp_ntz"}),
        broken="({0} < TIMESTAMP_NTZ '0001-01-01 00:00:00' OR {0} > TIMESTAMP_NTZ '9999-12-31 23:59:59.999999')",
        what=f"a time {_YEARS}",
        way_out="filter such rows out, or keep it as text",
    ),
)
"""Days that every reader has a form for: Python's, and so those of Arrow's and of databases' clients."""


def no_null(columns: Sequence[str]) -> tuple[ColumnRule, ...]:
    """Return the rules of columns that need a value in every row."""
    return tuple(
        ColumnRule(
            columns=(column,),
            broken=lambda values: f"{values[0]} IS NULL",
            what="no value",
            way_out="filter such rows out, or give the column a default",
        )
        for column in columns
    )


def no_empty_text(columns: Sequence[str]) -> tuple[ColumnRule, ...]:
    """Return the rules of columns of partitions, in which two texts are how no value is written."""
    return tuple(
        ColumnRule(
            columns=(column,),
            types=_TEXT,
            broken=lambda values: f"{values[0]} IN ('', '{NO_VALUE}')",
            what=f"empty text, or '{NO_VALUE}',",
            way_out="make it no value (nullif), or another text",
        )
        for column in columns
    )


def names_of_folders(columns: Sequence[str], longer_by: int = 0) -> tuple[ColumnRule, ...]:
    """Return the rules of columns whose text names folders, behind the column's name or so many bytes of another."""
    return tuple(
        _name_of_folder(column, _FOLDER - max(len(quote(column, safe="")) + 1, longer_by))
        for column in columns
    )


def _name_of_folder(column: str, limit: int) -> ColumnRule:
    def broken(values: Sequence[str]) -> str:
        plain = f"CAST(CAST({values[0]} AS BINARY) AS STRING)"  # without a collation
        # Where url_encode writes one byte, a writer of folders may write three.
        encoded = f"octet_length(url_encode(translate({plain}, '* ', '%%')))"
        is_long = f"octet_length({values[0]}) * 3 > {limit} AND {encoded} > {limit}"
        return f"{_HAS_NUL.format(values[0])} OR ({is_long})"

    return ColumnRule(
        columns=(column,),
        types=_TEXT,
        broken=broken,
        what=f"text with the character NUL, or longer than the {limit} bytes that name a folder",
        way_out="shorten it, or partition by another column (a prefix, a digest)",
    )


def most_bytes(columns: Sequence[str], limit: int, of: str) -> ColumnRule:
    """Return the rule of columns whose text and bytes may not be longer together."""
    return ColumnRule(
        columns=tuple(columns),
        types=_TEXT | {"binary"},
        broken=lambda values: (
            f"{' + '.join(f'coalesce(octet_length({one}), 0)' for one in values)} > {limit}"
        ),
        what=f"more than the {limit} bytes of {of}",
        way_out="shorten it, or use a digest of it (sha2)",
    )


def no_characters(characters: str, target: str) -> NameRule:
    """Return the rule of names without these characters."""
    return NameRule(
        broken=lambda name: not set(characters).isdisjoint(name),
        what=f"has a character that {target} refuses (one of {characters!r})",
    )


def no_names(names: Sequence[str], target: str) -> NameRule:
    """Return the rule of columns that the target has itself, in any case."""
    return NameRule(
        broken=lambda name: name.lower() in names,
        what=f"is one of the columns that {target} has itself",
        of_fields=False,
    )


def no_longer_names(limit: int, target: str) -> NameRule:
    """Return the rule of names that the target would cut short."""
    return NameRule(
        broken=lambda name: len(name.encode()) > limit,
        what=f"has more than the {limit} bytes that {target} keeps of a name",
        of_fields=False,
    )


OURS = NameRule(
    broken=lambda name: name.startswith("_") and name.lower().lstrip("_").startswith("dagster_ckpt_"),
    what="begins with '_dagster_ckpt_', which is ours",
    of_fields=False,
)
"""Columns that we add to rows are called so while they are staged and compared, and in the tables of databases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepts:
    """Values and types that a target can hold. Default: everything that can be staged."""

    types: frozenset[str] | None = None
    """Spark's names of types, at any depth (``PLAIN``, ``NESTED``); None: all."""
    names: tuple[NameRule, ...] = ()
    folds_case: bool = False
    """Columns, and fields of one struct, whose names differ in case only are one to it or to its readers."""
    values: tuple[ValueRule, ...] = ()
    columns: tuple[ColumnRule, ...] = ()
    rows: tuple[Callable[[Mapping[str, Any]], RowRule], ...] = ()
    """Rules of whole rows, from the types of their columns (Spark's JSON)."""

    def refuse_columns(self, place: str, schema: str) -> None:
        """Raise InvalidRequest, naming the column, where rows of this schema (Spark's JSON) cannot be held at all."""
        fields = parse_json(schema)["fields"]
        if not fields:
            raise InvalidRequest(f"the rows of {place} have no column: select some in the sink's function")
        _refuse_fields(self, place, fields, "")

    def rules(self, schema: str) -> tuple[RowRule, ...]:
        """Return the rules for every row of this schema (Spark's JSON); none where no type can be wrong."""
        types = {field["name"]: field["type"] for field in parse_json(schema)["fields"]}
        found = [
            rule for name, kind in types.items() for rule in _rules_of(self.values, name, kind, quoted(name))
        ]
        for rule in self.columns:
            meant = [one for one in rule.columns if one in types and _is_one(types[one], rule.types)]
            if meant:
                values = [quoted(one) for one in meant]
                found.append(
                    RowRule(
                        column=", ".join(meant),
                        broken=rule.broken(values),
                        example=values[0],
                        what=rule.what,
                        way_out=rule.way_out,
                    )
                )
        return (*found, *(rule(types) for rule in self.rows))


def _refuse_fields(accepts: Accepts, place: str, fields: Sequence[dict[str, Any]], within: str) -> None:
    names = [field["name"].lower() for field in fields]
    for field in fields:
        name, path = field["name"], f"{within}{field['name']}"
        for rule in (OURS, *accepts.names):
            if (rule.of_fields or not within) and rule.broken(name):
                raise InvalidRequest(
                    f"the name of column {path!r} {rule.what}: rename it, in the function of {place}"
                )
        if accepts.folds_case and names.count(name.lower()) > 1:
            others = [one["name"] for one in fields if one["name"].lower() == name.lower()]
            raise InvalidRequest(
                f"column {path!r} is there twice, as {' and '.join(map(repr, others))}: {place} or its readers tell "
                "names not apart by their case: rename one"
            )
        _refuse_type(accepts, place, path, field["type"])


def _refuse_type(accepts: Accepts, place: str, path: str, kind: Any) -> None:
    if not _is_one(kind, accepts.types):
        raise InvalidRequest(
            f"column {path!r} is {_name_of(kind)}, which {place} has no type for: cast it, or write it as "
            "text (to_json), in the function that returns it"
        )
    match kind:
        case {"type": "struct", "fields": []}:
            raise InvalidRequest(
                f"column {path!r} has a struct without fields, which no file of staged rows can hold: leave it out of "
                f"the rows of {place}, or give it a field"
            )
        case {"type": "struct", "fields": fields}:
            _refuse_fields(accepts, place, fields, f"{path}.")
        case {"type": "array", "elementType": element}:
            _refuse_type(accepts, place, path, element)
        case {"type": "map", "keyType": key, "valueType": value}:
            _refuse_type(accepts, place, path, key)
            _refuse_type(accepts, place, path, value)


def _name_of(kind: Any) -> str:
    """Return a type's name without its parameters: ``decimal`` of ``decimal(10,2)``."""
    return str(kind["type"] if isinstance(kind, dict) else kind).partition("(")[0]


def _is_one(kind: Any, types: frozenset[str] | None) -> bool:
    return types is None or _name_of(kind) in types


def _rules_of(values: Sequence[ValueRule], path: str, kind: Any, sql: str) -> Iterator[RowRule]:
    """Yield the rules of a value that SQL calls ``sql``, and of all that is in it."""
    match kind:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                inside = f"{sql}.{quoted(field['name'])}"
                yield from _rules_of(values, f"{path}.{field['name']}", field["type"], inside)
        case {"type": "array", "elementType": element}:
            yield from _rules_of_elements(values, path, element, sql)
        case {"type": "map", "keyType": key, "valueType": value}:
            yield from _rules_of_elements(values, path, key, f"map_keys({sql})")
            yield from _rules_of_elements(values, path, value, f"map_values({sql})")
        case _:
            for rule in values:
                if _is_one(kind, rule.types):
                    yield RowRule(
                        column=path,
                        broken=rule.broken.format(sql),
                        example=sql,
                        what=rule.what,
                        way_out=rule.way_out,
                        quick=rule.quick,
                    )


def _rules_of_elements(values: Sequence[ValueRule], path: str, element: Any, sql: str) -> Iterator[RowRule]:
    for rule in _rules_of(values, path, element, "e"):
        wrong = f"filter({sql}, e -> {rule.broken})"
        yield replace(
            rule,
            broken=f"exists({sql}, e -> {rule.broken})",
            example=f"transform({wrong}, e -> {rule.example})[0]",
            quick=None,
        )


_APART = "a table tells keys apart by their bytes: rows that are one to Spark would be several"


def refuse_nested_key(where: str, schema: str, key: Sequence[str]) -> None:
    """Raise InvalidRequest for a key whose values nothing can compare: its rows could not be published any more.

    ``schema``: Spark's, as JSON.
    """
    for field in parse_json(schema)["fields"]:
        kind = field["type"]
        if field["name"] in key and (isinstance(kind, dict) or kind == "variant"):
            text = kind["type"] if isinstance(kind, dict) else kind
            raise InvalidRequest(
                f"{where}: the key column {field['name']!r} is of type {text}, whose values cannot be compared: use "
                "plain columns (numbers, text, dates), such as its parts or to_json of it. Rows staged with it are "
                "left behind by restore_from an earlier snapshot, or 'none'"
            )


def refuse_collated(
    place: str, columns: Sequence[str], frame: DataFrame, word: str = "key", why: str = _APART
) -> None:
    """Raise InvalidRequest for columns that Spark compares otherwise than by their bytes, as every table does."""
    from pyspark.sql.types import StringType

    for column in frame.schema.fields:
        kind = column.dataType
        if column.name in columns and isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            raise InvalidRequest(
                f"the {word} column {column.name!r} of {place} has the collation {kind.collation}, and {why}. Use "
                f"lower(...) or the like as {word}, and collate(..., 'UTF8_BINARY')"
            )
