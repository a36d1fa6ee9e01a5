"""Every decision, pure: values and ``now`` in, values out. Nothing here reads a clock, a file or a network.

Words:

| file | what it owns |
|---|---|
| ``ids`` | newtypes of every identifier, and the checks that make one |
| ``reasons`` | why a checkpoint failed; what an acknowledgement was |
| ``config`` | settings under Flink's option names |
| ``flink_options`` | Flink's options and where each is found here |
| ``graph`` | stages, subtasks and the channels between them |
| ``messages`` | what coordinator and stages tell each other |
| ``model`` | persisted records: ``_metadata`` and the rows of a manifest |
| ``metadata_text`` | the text of ``_metadata``, written and read with clear errors |
| ``metadata`` | from acknowledgements to its content |
| ``paths`` | the only file that spells a storage key |
| ``record`` | the coordinator's durable record of one pipeline |
| ``state`` | the coordinator's whole state, and the shape of a decision |
| ``evolve`` | one field of that state replaced, fast |
| ``inputs`` | the events a decision is made on |
| ``transitions`` | the one decision function: nothing else changes the state |
| ``effects`` | what the runtime does after a decision was stored |
| ``events`` | what listeners are told after it |
| ``outcomes`` | what the coordinator answers its users |

Taking a checkpoint:

| file | what it owns |
|---|---|
| ``requests`` | requests and their only queue |
| ``scheduler`` | when the periodic scheduler fires |
| ``plan`` | which subtasks are triggered, waited for and notified |
| ``requesting`` | what becomes of a request before it has an id |
| ``triggering`` | from the queue to a triggered checkpoint |
| ``collecting`` | what becomes of the stages' messages, in time or late |
| ``tasks`` | status and current try of every subtask |
| ``pending`` | how far a pending checkpoint got |
| ``finishing`` | how it ends: completed or aborted |
| ``event_gate`` | events of a driver-side coordinator on the right side of a checkpoint |
| ``failures`` | whether a failed checkpoint fails the run |
| ``stop_with_savepoint`` | its two facts and three endings |
| ``stopping`` | how a stop goes on when savepoint or stages end |
| ``lifecycle`` | stages come and go, the timer runs, the run ends |
| ``deleting`` | which deletions the coordinator owes are due, and which shared files go with them |
| ``statistics`` | numbers of a checkpoint, and what they add up to |
| ``reporting`` | where those numbers are drawn from |
| ``alignment`` | barriers at a stage's inputs: aligned, alternating, unaligned, tracked |

Keeping and restoring:

| file | what it owns |
|---|---|
| ``properties`` | what may be done to a snapshot of each kind |
| ``retention`` | which completed checkpoints are kept |
| ``shared_state`` | who still uses files that checkpoints share |
| ``cleaning`` | which stored files may be deleted, and when |
| ``recovery`` | what a new attempt starts from |
| ``restore_facts`` | the durable facts that is decided on |
| ``restore_point`` | what a person may write in ``restore_from`` |
| ``matching`` | which saved state goes to which stage |
| ``finished_state`` | whether finished stages fit the graph |
| ``key_groups`` | which subtask owns which part of keyed state |
| ``assignment`` | how list state and in-flight data are dealt out to another parallelism |
| ``subtask`` | the stage's side of a checkpoint: order of steps, aborts, final checkpoint |
| ``subtask_effects`` | what that asks the stage's host to do |
| ``local_recovery`` | which local copies are kept, and when one is good enough |

Looking after a pipeline from outside:

| file | what it owns |
|---|---|
| ``aftermath`` | what to do about an attempt that may be dead |
| ``mirroring`` | which partitions of the checkpoints asset are missing or left over |
| ``streaks`` | failures since the last completion |
| ``alarms`` | when people are told of them, once per episode |
| ``mailbox`` | what other processes ask a run that is alive, kept in the record |
| ``restarts`` | whether a pipeline whose run failed is started again, and when |
"""
