"""The coordinator's state machine. ``transitions.decide`` is the only function that makes a new state.

| file | what it owns |
|---|---|
| ``state`` | the whole state, and the shape of a decision |
| ``inputs`` | what a decision is made on |
| ``transitions`` | the one decision function |
| ``effects`` | what the runtime does after a decision was stored |
| ``events`` | what listeners are told after it |
| ``admission`` | requests before they have an id |
| ``triggering`` | from the queue to a triggered checkpoint |
| ``acknowledgements`` | acknowledgements, declines and confirmations of stages, in time or late |
| ``participants`` | driver-side states and results of master hooks |
| ``completion`` | how a checkpoint ends: completed or aborted |
| ``metadata`` | from acknowledgements to the content of ``_metadata`` |
| ``stopping`` | how stop-with-savepoint goes on when savepoint or stages end |
| ``deletions`` | which deletions are due, and which shared files go with them |
| ``lifecycle`` | stages come and go, the timer runs, the run ends |
| ``counting`` | where the statistics of a checkpoint are drawn from |
| ``mailbox`` | requests of other processes to a run that is alive, kept in the record |
"""
