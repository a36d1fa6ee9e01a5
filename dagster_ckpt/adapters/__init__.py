"""The ports on real databases and storages. They store and classify failures; they decide nothing.

| file | what it owns |
|---|---|
| ``sql_store`` | ``CoordinatorStore`` on SQLite and PostgreSQL |
| ``sql_storage`` | ``CheckpointStorage`` in the same database, for small checkpoints |
| ``sql_database`` | transactions, and what became of a COMMIT without an answer |
| ``sql_engine`` | connections, and what driver errors mean |
| ``sql_schema`` | the tables; bringing a database to this version's schema |
| ``migrations`` | the steps of that, for alembic |
| ``arrivals`` | files that have arrived somewhere |
| ``fsspec_storage`` | ``CheckpointStorage`` at any fsspec URI |
| ``local_keys`` | keys below a local folder |
| ``local_sync`` | when their content reaches the disk |
| ``remote_keys`` | keys on object stores and remote folders |
| ``conditional_put`` | keys created exclusively in object stores, with one request; what failures of clients mean |
"""
