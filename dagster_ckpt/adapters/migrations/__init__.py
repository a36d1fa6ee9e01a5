"""Schema changes of the SQL store (alembic): ``env.py`` runs them, ``versions/`` holds a file per change."""
