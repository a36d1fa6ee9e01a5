"""``CoordinatorHarness``: a whole checkpoint coordinator in memory, for scenarios in a handful of lines.

| file | what it owns |
|---|---|
| ``harness`` | the harness: attempts and time; and the names of its parts |
| ``requests`` | its part for what users and the timer ask for |
| ``tasks`` | its part for tasks: what they go through and answer |
| ``events`` | its part for driver-side coordinators: their states and their events to subtasks |
| ``faults`` | its part for what fails |
| ``readings`` | its part for what it shows |
| ``world`` | what outlives the attempt: store, storages, clock; the attempt that all parts work on |
| ``settings`` | what it takes by name, for type checkers |
| ``participants`` | master hooks and driver-side coordinators that answer as the test says |
"""
