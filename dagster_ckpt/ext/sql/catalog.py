"""Facts of a table in the database's own catalog: its columns, and the unique keys that an upsert may name."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from dagster_ckpt.ext.sql.names import SqlName, quoted


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
    the same one.
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
    GROUP BY i.indexrelid
    HAVING bool_and(coalesce(c.collisdeterministic, true))
    """
)
