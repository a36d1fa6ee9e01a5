"""A table of a database as a sink: rows and position in one transaction. SQLite and PostgreSQL.

| file | what it owns |
|---|---|
| ``sink`` | ``SqlSink``: the port's steps, each one transaction; rows out, as one statement finds them |
| ``database`` | the URL, connections, transactions, what a driver's errors mean |
| ``names`` | names of tables and columns: as the database compares them, short enough, none that is ours or its own |
| ``catalog`` | what the database's catalog says of a table |
| ``columns`` | which column a Spark type becomes, and which existing columns take it |
| ``table`` | the user's table: made, widened, compared with the rows |
| ``load`` | rows in: COPY or many inserts, appended, by key, or instead of all |
| ``positions`` | what the outside has seen: a row a table, one a publish; the tree of publishes (pure) |
| ``images`` | rows as they were before a publish and after it, and rows that were set aside |
| ``others`` | what a restore would miss or overwrite because of others |
| ``fork`` | a table that begins with the rows of a cut of another one of the database |
"""
