"""Where decisions meet the world: load, decide, compare-and-set, then run the effects.

| file | what it owns |
|---|---|
| ``coordinator`` | ``CheckpointCoordinator``: what users and stages call |
| ``views`` | what anyone may ask it |
| ``opening`` | how an attempt begins: attach, or choose what to restore and claim the next epoch |
| ``engine`` | the one seam that writes: load, decide, compare-and-set; what a failing store means |
| ``workings`` | runs an event to its end: decision, effects, what they lead to, deletions |
| ``performing`` | performs effects: location, hooks, triggers, metadata, notices |
| ``permits`` | the only place that makes a ``CommitPermit`` |
| ``hooks`` | what master hooks and driver-side coordinators promise |
| ``gated_coordinator`` | keeps a driver-side coordinator's events on the right side of a checkpoint |
| ``handles`` | which files a completed checkpoint refers to |
| ``shared_files`` | the registry of shared files, filled from messages and file lists |
| ``cleaner`` | deletes files in the background, only what it can name |
| ``mailbox`` | how other processes ask a run that is alive |
| ``aftermath`` | what is done for a run that is dead |
| ``clock`` | the clock of a real process |
"""
