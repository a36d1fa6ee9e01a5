"""Store, storage and tables kept in order. Without this folder they would only ever grow, and damage stay unseen.

| file | what it owns |
|---|---|
| ``clean`` | removing what checkpoints that are over have left; removing a savepoint |
| ``maintain`` | tables compacted and vacuumed; quarantined rows ordered through their stage again |
| ``doctor`` | the store compared with the storage |
| ``repair`` | traces of pipelines in the storage, and records built again from them |
"""
