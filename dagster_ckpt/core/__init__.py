"""Every decision, pure: values and ``now`` in, values out. Nothing here reads a clock, a file or a network.

Words, which every folder below shares:

| file | what it owns |
|---|---|
| ``ids`` | newtypes of every identifier; paths and names of others' files, below their folder or refused |
| ``config`` | settings under Flink's option names; of each hour and day the newest checkpoint is kept |
| ``settings`` | settings as people write them: Flink's keys and units, unknown names refused |
| ``flink_options`` | Flink's options and where each is found here |
| ``graph`` | stages, subtasks and the channels between them |
| ``chains`` | which stages run as one query, and what that makes of the graph |
| ``model`` | persisted records: ``_metadata``, name and labels of a snapshot, the rows of a manifest |
| ``units`` | durations, sizes, ages and moments as people say them |
| ``json_text`` | JSON text parsed, whatever its shape |
| ``metadata_text`` | the texts of ``_metadata`` and of a pipeline hook's state, written and read with clear errors |
| ``paths`` | the only file that spells a storage key; location of a snapshot: a folder, or rows of the store |
| ``restore_point`` | what a person may write in ``restore_from`` |
| ``request`` | a request for a checkpoint or savepoint, its answers, and what may be done to its snapshot |
| ``messages`` | what coordinator and stages tell each other; why a checkpoint failed; what an acknowledgement was |

Decisions:

| folder | what it owns |
|---|---|
| ``restore/`` | what an attempt starts from |
| ``checkpoint/`` | parts of a checkpoint with rules of their own: request queue, plan, pending state, record |
| ``files/`` | which files are kept, shared and deleted |
| ``alignment/`` | barriers at a stage's inputs: aligned, alternating, unaligned, tracked |
| ``subtask/`` | the stage's side of a checkpoint |
| ``coordinator/`` | the state machine: inputs, transitions, effects |
| ``supervision/`` | a pipeline watched from outside: dead runs, alarms, restarts |
"""
