"""``CoordinatorHarness``: a whole checkpoint coordinator in memory, for scenarios in a handful of lines.

| file | what it owns |
|---|---|
| ``harness`` | the harness: attempts and time; and the names of its parts |
| ``tasks`` | its part for tasks: what they go through and answer |
| ``readings`` | its part for what it shows |
| ``world`` | what outlives the attempt: store, storages, clock; its graph from few words; what fails |
| ``settings`` | what it takes by name, for type checkers |
| ``events`` | its part for driver-side coordinators: their answers, states and events to subtasks; master hooks |
"""
