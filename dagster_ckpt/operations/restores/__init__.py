"""Restores before they are done. Without this folder a restore would be tried to learn what it does.

| file | what it owns |
|---|---|
| ``preview`` | what a restore would do, and why it is refused |
| ``tables`` | what it would do to the tables |
| ``sources`` | how far behind sources would be, whether they could read on, new readers; states of hooks |
| ``horizon`` | for how long retained snapshots can still be restored |
"""
