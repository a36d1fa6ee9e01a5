"""The coordinator's state machine. ``transitions.decide`` is the only function that makes a new state.

| file | what it owns |
|---|---|
| ``state`` | the whole state, and the shape of a decision |
| ``inputs`` | what a decision is made on |
| ``transitions`` | the one decision function |
| ``effects`` | what the runtime does after a decision was stored, and what listeners are told |
| ``admission`` | requests before they have an id, of this process and, through the record, of others |
| ``triggering`` | from the queue to a triggered checkpoint |
| ``acknowledgements`` | answers of stages, in time or late; driver-side states, results of master hooks |
| ``completion`` | how a checkpoint ends: completed or aborted |
| ``metadata`` | content of ``_metadata`` from acknowledgements; the numbers of a checkpoint |
| ``stopping`` | how stop-with-savepoint goes on when savepoint or stages end |
| ``deletions`` | which deletions are due, and which shared files go with them |
| ``lifecycle`` | stages come and go, the timer runs, the run ends |
"""
