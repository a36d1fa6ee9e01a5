"""Files of checkpoints: kept, shared, deleted.

| file | what it owns |
|---|---|
| ``retention`` | which completed checkpoints are kept; which local copies are kept, and when one is good enough |
| ``cleaning`` | which stored files may be deleted, and when; who still uses files that checkpoints share |
"""
