"""Epoch runs: every stage drains the available data (``availableNow``), in graph order, and a checkpoint ends the run.

| file | what it owns |
|---|---|
| ``run`` | the run: stage by stage, the barrier follows |
| ``gateway`` | how the coordinator reaches its stages |
"""
