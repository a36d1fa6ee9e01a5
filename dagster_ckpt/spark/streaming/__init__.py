"""Streaming runs: all stages of a pipeline at once in one Spark session, barriers flowing while they run.

| file | what it owns |
|---|---|
| ``service`` | a run: attempt after attempt, as the restart strategy says |
| ``run`` | one attempt while it runs: start, supervise, stop |
| ``running_stage`` | a stage with its query: prepared, started, stopped between two batches |
| ``loop`` | the thread in which all barrier decisions of a run are taken |
| ``stage_worker`` | one stage: feeds alignment and checkpoint state, and performs what they decide |
| ``input_alignment`` | its inputs: what arrives in them, and whose readers are held |
| ``instant_cut`` | batches of all stages that belong together, chosen without barriers |
| ``channels`` | what lies ahead in an input's log, what the reader has reached; the stage's own barriers |
| ``gate`` | holds and stops a query exactly between two micro-batches; barriers whose place a source decides |
| ``snapshot_job`` | the asynchronous part of a stage's snapshot, and those of a stage that are in progress |
| ``gateway`` | how the coordinator reaches the stages |
| ``orders`` | idle stages restarted, so that rows of their quarantines go through again |
| ``restart`` | restart strategies |
| ``sources`` | which sources have a backlog, and when bounded ones and all stages behind them have ended |
| ``backpressure`` | holds the sources while tables' commits are slower than the stream |
| ``garbage`` | removes log entries and table files that nothing restorable needs any more |
| ``progress`` | measures a run while it runs |
| ``watch`` | reports that progress now and then |
| ``background`` | threads that never keep the process alive: for deletions, for snapshots |
"""
