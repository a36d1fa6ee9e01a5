"""Runtime of the coordinator: load, decide, compare-and-set, then run the effects.

| file | what it owns |
|---|---|
| ``coordinator`` | ``CheckpointCoordinator``: what users and stages call |
| ``status`` | what anyone may ask it |
| ``attempt_setup`` | everything an attempt is opened with |
| ``claim`` | how an attempt begins: attach, or choose what to restore and claim the next epoch; how a dead one ends |
| ``restore_facts`` | the facts of that choice; what was seen of the pipeline, and the refusal to run behind it |
| ``relocation`` | checkpoints of another storage: the deployment was copied or moved, or ``checkpoint_dir`` changed |
| ``record_store`` | the one seam that writes: the record changed by compare-and-set; who restored what |
| ``engine`` | the state of one attempt: decides inputs and stores the decisions; what a failing store means |
| ``loop`` | runs an input to its end: decision, effects, what they lead to, deletions |
| ``effects`` | performs effects: location, hooks, triggers, metadata, notices, commit permits; log lines |
| ``stored`` | a snapshot in its storage: where its files go, its metadata and file lists, verified |
| ``files`` | registry of shared files; deletion in the background, only of what it can name |
| ``mailbox`` | requests of other processes to a run that is alive |
| ``driver/`` | master hooks and driver-side state |
| ``turn`` | the turn of a run, where another one of its pipeline is alive; the lease of an attempt, kept |
"""
