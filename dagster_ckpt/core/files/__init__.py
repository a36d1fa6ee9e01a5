"""Files of checkpoints: kept, shared, deleted.

| file | what it owns |
|---|---|
| ``retention`` | which completed checkpoints are kept |
| ``shared_state`` | who still uses files that checkpoints share |
| ``cleaning`` | which stored files may be deleted, and when |
| ``local_recovery`` | which local copies are kept, and when one is good enough |
"""
