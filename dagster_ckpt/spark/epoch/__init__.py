"""Epoch runs: every stage drains the available data (``availableNow``), in graph order, and a checkpoint ends the run.

| file | what it owns |
|---|---|
| ``attempt`` | an attempt: opened, its stages run, its checkpoint reported, left in order |
| ``run`` | the run: stage by stage, the barrier follows |
| ``drains`` | the queries of its stages, side by side where they can be |
"""
