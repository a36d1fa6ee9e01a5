"""Positions of sources after a restore: are the records there, until when, and how far behind the end.

| file | what it owns |
|---|---|
| ``positions`` | positions in a snapshot, their origins, how far behind the end each is; told to consumer groups |
| ``pins`` | what a snapshot needs of its sources, and the restore that is refused without it |
"""
