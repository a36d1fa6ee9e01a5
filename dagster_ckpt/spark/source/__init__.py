"""Positions of sources after a restore: are the records there, until when, and how far behind the end.

| file | what it owns |
|---|---|
| ``positions`` | the positions in a snapshot, with the origins that know about them; how far behind the end each is |
| ``groups`` | consumer groups that are told the offsets of completed checkpoints |
| ``pins`` | what a snapshot needs of its sources, and the restore that is refused without it |
"""
