"""For tests, yours included: stand-ins for the ports, and faults on purpose.

| file | what it owns |
|---|---|
| ``memory`` | store and storage in memory; they pass the contract suites of the real ones |
| ``faults`` | calls that fail, vanish, hang or end the process |
| ``faulty`` | the wrappers those faults work through |
| ``harness`` | ``CoordinatorHarness``: the coordinator over all of these, for scenarios in a handful of lines |
| ``harness_graph``, ``harness_answers`` | its parts: the graph of a scenario, what tasks answer |
| ``harness_events`` | events of driver-side coordinators to their subtasks |
| ``harness_faults``, ``harness_readings`` | what fails, and what it shows |
| ``barriers`` | ``BarrierHarness``: the input side of one stage, its channels played by the test |
| ``subtask`` | ``SubtaskHarness``: the stage's side of a checkpoint, and the notices it hears |
| ``clock`` | ``ManualClock``: time stands still until the test moves it |
| ``gateway`` | ``RecordingGateway``: what tasks were asked and told |
| ``participants`` | master hooks and driver-side coordinators that answer as the test says |
| ``nested`` | a folder of a storage as a storage of its own |
| ``background`` | deletions that run when the test lets them |
"""
