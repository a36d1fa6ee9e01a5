"""The ports on real databases and storages. They store and classify failures; they decide nothing.

| file | what it owns |
|---|---|
| ``sql_store`` | ``CoordinatorStore`` on SQLite and PostgreSQL; small checkpoints in the same database |
| ``sql_database`` | the tables and their schema; transactions, and what became of a COMMIT without an answer |
| ``sql_engine`` | connections, and what driver errors mean |
| ``migrations`` | the steps of that, for alembic |
| ``fsspec_storage`` | ``CheckpointStorage`` at any fsspec URI; files that have arrived somewhere |
| ``local_keys`` | keys below a local folder |
| ``local_sync`` | when their content reaches the disk |
| ``remote_keys`` | keys on object stores and remote folders |
| ``conditional_put`` | keys created exclusively in object stores, with one request; what failures of clients mean |
"""
