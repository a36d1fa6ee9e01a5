"""Facts of a table in the database's own catalog: columns, unique keys, and triggers, rules and policies on rows.

Triggers, rules and policies of which it is read that rows would be dropped, changed or hidden are refused before rows
are promised. What no text tells is compared once it was done, in the same transaction.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, text

from dagster_ckpt.ext.sql.names import SqlName, compared, quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    """A column that is there."""

    name: str
    type: str
    """As the database spells it, in capitals where nothing in it is quoted; empty: SQLite was told none."""
    must_be_given: bool
    """NOT NULL, and nothing fills it."""
    is_computed: bool
    """The database computes it, and refuses a value."""
    category: str = ""
    """Kind of type, of which each is cast to any other; SQLite has none."""


def columns_of(connection: Connection, name: SqlName) -> list[Existing]:
    """Return a table's columns in their order; none: there is no such table."""
    if connection.dialect.name == "sqlite":
        found = connection.exec_driver_sql(f"PRAGMA table_xinfo({name.quoted()})").all()
        return [
            Existing(
                name=row[1],
                type=_spelled(row[2]),
                must_be_given=bool(row[3]) and row[4] is None and not row[6],
                is_computed=row[6] in (2, 3),
            )
            for row in found
        ]
    found = connection.execute(_COLUMNS, {"name": name.quoted()}).all()
    return [
        Existing(
            name=row.name,
            type=_spelled(row.type),
            must_be_given=row.must and not row.filled,
            is_computed=row.computed,
            category=row.category,
        )
        for row in found
    ]


def kind_of(connection: Connection, name: SqlName) -> str:
    """Return the kind of a relation: ``table``, or in the database's words another, as ``view``."""
    if connection.dialect.name == "sqlite":
        found = connection.exec_driver_sql("SELECT type FROM pragma_table_list(?)", (name.name,)).scalar()
        return str(found or "table")
    found = connection.execute(_KIND, {"name": name.quoted()}).scalar()
    return str(found or "table")


def unique_keys(connection: Connection, name: SqlName) -> list[frozenset[str]]:
    """Return the sets of columns that ``ON CONFLICT`` may name, and that tell values apart as all other sinks do.

    Not an index over some rows, over expressions, of a constraint that may be deferred, or that takes other texts for
    the same one; nor any of a table of which others inherit, whose rows are not in it.
    """
    if connection.dialect.name == "sqlite":
        return _unique_keys_of_sqlite(connection, name)
    found = connection.execute(_UNIQUE, {"name": name.quoted()}).all()
    return [frozenset(row.columns) for row in found]


def _unique_keys_of_sqlite(connection: Connection, name: SqlName) -> list[frozenset[str]]:
    columns = connection.exec_driver_sql(f"PRAGMA table_xinfo({name.quoted()})").all()
    primary = [row for row in columns if row[5]]
    # The row number itself has no index, and is compared as the number that it is.
    is_number = len(primary) == 1 and primary[0][2].upper() == "INTEGER"
    keys = [frozenset(row[1] for row in primary)] if is_number else []
    for index in connection.exec_driver_sql(f"PRAGMA index_list({name.quoted()})").all():
        parts = connection.exec_driver_sql(f"PRAGMA index_xinfo({quoted(index[1])})").all()
        named = [part for part in parts if part[5]]
        if index[2] and not index[4] and all(part[1] >= 0 and part[4] == "BINARY" for part in named):
            keys.append(frozenset(part[2] for part in named))
    return keys


def _spelled(found: str) -> str:
    return found if '"' in found else found.upper()


_COLUMNS = text(
    """
    SELECT attname AS name, format_type(atttypid, atttypmod) AS type, attnotnull AS must,
           atthasdef OR attidentity <> '' AS filled, attgenerated <> '' AS computed, typcategory AS category
    FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
    WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped
    ORDER BY attnum
    """
)
_KIND = text(
    """
    SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table'
           ELSE 'table' END
    FROM pg_class WHERE oid = to_regclass(:name)
    """
)
_UNIQUE = text(
    """
    SELECT array_agg(a.attname::text) AS columns
    FROM pg_index i
    CROSS JOIN LATERAL generate_series(0, i.indnkeyatts - 1) AS part
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[part]
    LEFT JOIN pg_collation c ON c.oid = i.indcollation[part]
    WHERE i.indrelid = to_regclass(:name)
      AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
      AND NOT EXISTS (
          SELECT 1 FROM pg_inherits JOIN pg_class p ON p.oid = inhparent WHERE p.oid = i.indrelid AND p.relkind = 'r'
      )
    GROUP BY i.indexrelid
    HAVING bool_and(coalesce(c.collisdeterministic, true))
    """
)


WAY_OUT = "drop it, let it leave these rows as they are, or do in the sink's function what it does"
_DROPS = re.compile(r"RAISE\s*\(\s*IGNORE", re.IGNORECASE)
_RETURNS_NONE = re.compile(r"\bRETURN\s+NULL\b", re.IGNORECASE)
_ASSIGNED = re.compile(
    r'(?:(?:^|;|\bTHEN|\bELSE|\bBEGIN|\bLOOP)\s*NEW\s*\.\s*"?(\w+)"?\s*:?=|\bNEW\s*\.\s*"?(\w+)"?\s*:=|'
    r'\bINTO\s+(?:STRICT\s+)?NEW\s*\.\s*"?(\w+))',
    re.IGNORECASE,
)
_IGNORES = re.compile(r"\bON\s+CONFLICT\s+(IGNORE|REPLACE)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A trigger that fires for what a sink writes."""

    name: str
    text: str
    """What it does, as its author wrote it."""
    is_before: bool
    """It is given each row before it is written, and returns the row that is."""


def triggers_of(connection: Connection, name: SqlName) -> list[Trigger]:
    """Return the triggers of a table, and of its partitions."""
    if connection.dialect.name == "sqlite":
        return [
            Trigger(name=row[0], text=row[1], is_before=False)
            for row in _in_sqlite(connection, "trigger", name)
        ]
    found = connection.execute(_TRIGGERS, {"name": name.quoted()})
    return [Trigger(name=row.name, text=row.text, is_before=row.before) for row in found]


def why_not_as_written(connection: Connection, name: SqlName, columns: Collection[str]) -> str:
    """Return the reason for which rows with these columns would not be shown as written; empty: none is known."""
    return next(_reasons(connection, name, columns), "")


def _reasons(connection: Connection, name: SqlName, columns: Collection[str]) -> Iterator[str]:
    for trigger in triggers_of(connection, name):
        if does := _does(trigger, name, {column.lower() for column in columns}):
            yield f"has a trigger {trigger.name!r}, which {does}: {WAY_OUT}"
    if connection.dialect.name == "sqlite":
        for _, made in _in_sqlite(connection, "table", name):
            if found := _IGNORES.search(made or ""):
                yield (
                    f"has a constraint with {found[0].upper()}, which removes rows instead of refusing them: make the "
                    "table without that"
                )
        return
    for (rule,) in connection.execute(_RULES, {"name": name.quoted()}):
        yield f"has a rule {rule!r}, which makes something else of what is written: drop it, or make it a trigger"
    if connection.execute(_HIDES, {"name": name.quoted()}).scalar():
        yield (
            "hides rows from this user by row-level security: let a user write it that owns the table or has BYPASSRLS"
        )


def _does(trigger: Trigger, name: SqlName, columns: Collection[str]) -> str:
    if _DROPS.search(trigger.text) or (trigger.is_before and _RETURNS_NONE.search(trigger.text)):
        return "drops rows that are written"
    table = rf'(?:\w+\.)?["\[`]?{re.escape(name.name)}["\]`]?'
    if re.search(rf"\bDELETE\s+FROM\s+{table}(?!\w)", trigger.text, re.IGNORECASE):
        return "removes rows of the table"
    assigned = (
        {one for found in _ASSIGNED.findall(trigger.text) for one in found if one}
        if trigger.is_before
        else set()
    )
    for setting in re.findall(
        rf"\bUPDATE\s+{table}\s+SET\b(.*?)(?:\bWHERE\b|;|$)", trigger.text, re.I | re.S
    ):
        assigned |= set(re.findall(r'"?(\w+)"?\s*=', setting))
    changed = sorted(one for one in assigned if one.lower() in columns)
    return f"changes the column {changed[0]!r} of rows that are written" if changed else ""


def _in_sqlite(connection: Connection, kind: str, name: SqlName) -> list[tuple[str, str]]:
    found = connection.exec_driver_sql(
        "SELECT name, sql FROM sqlite_master WHERE type = ? AND lower(tbl_name) = lower(?)",
        (kind, compared(name.name, "sqlite")),
    )
    return [(row[0], row[1]) for row in found]


_TRIGGERS = text(
    """
    SELECT t.tgname AS name, p.prosrc AS text, t.tgtype & 3 = 3 AND t.tgtype & 20 <> 0 AS before
    FROM pg_trigger t
    JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid IN (
        SELECT to_regclass(:name) UNION SELECT relid FROM pg_partition_tree(to_regclass(:name))
    ) AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')
    ORDER BY t.tgname
    """
)
_RULES = text("SELECT rulename FROM pg_rewrite WHERE ev_class = to_regclass(:name) AND ev_type <> '1'")
_HIDES = text("SELECT row_security_active(to_regclass(:name)::oid)")
