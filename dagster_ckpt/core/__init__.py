"""Every decision, pure: values and ``now`` in, values out. Nothing here reads a clock, a file or a network.

Words, which every folder below shares:

| file | what it owns |
|---|---|
| ``ids`` | newtypes of every identifier, and the checks that make one |
| ``reasons`` | why a checkpoint failed; what an acknowledgement was |
| ``config`` | settings under Flink's option names |
| ``settings`` | settings as people write them: Flink's keys and units, unknown names refused |
| ``flink_options`` | Flink's options and where each is found here |
| ``periods`` | of each hour and day the newest checkpoint is kept |
| ``in_store`` | checkpoints inside the coordinator store: their URI, and how large they may be |
| ``graph`` | stages, subtasks and the channels between them |
| ``chains`` | which stages run as one query, and what that makes of the graph |
| ``properties`` | what may be done to a snapshot of each kind |
| ``label`` | name, labels and note of a snapshot |
| ``model`` | persisted records: ``_metadata`` and the rows of a manifest |
| ``units`` | durations, sizes, ages and moments as people say them |
| ``json_text`` | JSON text parsed, whatever its shape |
| ``safe_paths`` | paths and names that persisted files give: below their folder, or refused |
| ``metadata_text`` | the text of ``_metadata``, written and read with clear errors |
| ``hook_state`` | the text of a pipeline hook's state |
| ``storage`` | digests and listings of stored content |
| ``location`` | location of a snapshot: a folder of a storage |
| ``paths`` | the only file that spells a storage key |
| ``restore_point`` | what a person may write in ``restore_from`` |
| ``serving`` | which pipeline's tables readers of a name find |
| ``request`` | a request for a checkpoint or savepoint |
| ``messages`` | what coordinator and stages tell each other |
| ``outcomes`` | what the coordinator answers its users |

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
