"""Parts of a checkpoint that have rules of their own. None of them knows the coordinator.

| file | what it owns |
|---|---|
| ``requests`` | the only queue of requests; when the periodic scheduler fires; a stop with a savepoint |
| ``tasks`` | status and current try of every subtask; which subtasks are triggered, waited for and notified |
| ``pending`` | how far a pending checkpoint got |
| ``record`` | the coordinator's durable record of one pipeline |
| ``tables`` | tables that readers find; orders to put quarantined rows through their stage again |
| ``line`` | which retained checkpoints a restore left behind |
| ``lease`` | whether an attempt's process is alive: its lease, and watching it |
| ``statistics`` | numbers of a checkpoint, and what they add up to |
| ``failures`` | whether a failed checkpoint fails the run |
"""
