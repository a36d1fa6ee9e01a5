"""Store, storage and tables kept in order. Without this folder they would only ever grow, and damage stay unseen.

| file | what it owns |
|---|---|
| ``dispose`` | removing a savepoint |
| ``clean`` | removing what checkpoints that are over have left |
| ``maintain`` | tables compacted and vacuumed, without what retained snapshots need |
| ``requeue`` | quarantined rows ordered through their stage again |
| ``outside`` | what storage and tables have seen of a pipeline |
| ``doctor`` | the store compared with the storage |
| ``repair`` | records built again from the storage |
"""
