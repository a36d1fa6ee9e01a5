"""Store, storage and tables kept in order. Without this folder they would only ever grow, and damage stay unseen.

| file | what it owns |
|---|---|
| ``dispose`` | removing a savepoint |
| ``clean`` | removing what checkpoints that are over have left |
| ``maintain`` | tables compacted and vacuumed, without what retained snapshots need |
| ``requeue`` | quarantined rows ordered through their stage again |
| ``doctor`` | the store compared with the storage |
| ``repair`` | traces of pipelines in the storage, and records built again from them |
"""
