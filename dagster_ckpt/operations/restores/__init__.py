"""Restores before they are done. Without this folder a restore would be tried to learn what it does.

| file | what it owns |
|---|---|
| ``preview`` | what a restore would do, and why it is refused |
| ``parts`` | its parts: sources, new readers, states of hooks, tables |
| ``horizon`` | for how long retained snapshots can still be restored |
"""
