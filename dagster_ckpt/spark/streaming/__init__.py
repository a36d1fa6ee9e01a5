"""Streaming runs: all stages of a pipeline at once in one Spark session, barriers flowing while they run.

| file | what it owns |
|---|---|
| ``service`` | a run: attempt after attempt, as the restart strategy says |
| ``run`` | one attempt while it runs: start, supervise, stop |
| ``running_stage`` | a stage with its query: prepared, started, stopped between two batches |
| ``loop`` | the thread in which all barrier decisions of a run are taken; how the coordinator reaches the stages |
| ``stage_worker`` | one stage: feeds alignment and checkpoint state, and performs what they decide |
| ``input_alignment`` | its inputs: what arrives in them, what lies ahead, whose readers are held; its own barriers |
| ``instant_cut`` | batches of all stages that belong together, chosen without barriers |
| ``gate`` | holds a query exactly between two micro-batches, and sources while commits are slower |
| ``snapshot_job`` | the asynchronous part of a stage's snapshot, and those of a stage that are in progress |
| ``restart`` | restart strategies |
| ``sources`` | which sources have a backlog, and when stages have ended; idle ones restarted for requeued rows |
| ``progress`` | measures a run while it runs; reports that progress now and then |
| ``background`` | threads that never keep the process alive: for deletions, snapshots, garbage |
"""
