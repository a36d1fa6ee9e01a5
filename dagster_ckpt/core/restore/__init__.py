"""Restore: what an attempt starts from, and why one refuses to start.

| file | what it owns |
|---|---|
| ``facts`` | the durable facts of the choice; snapshots; a history's identity, and the refusal to run behind it |
| ``choice`` | the choice, as a value: nothing, the previous working directory, or a snapshot |
| ``from_snapshot`` | a snapshot's metadata checked against the graph |
| ``matching`` | which saved state goes to which stage; whether finished stages fit the graph |
| ``parted`` | a snapshot of queries that are parts of them now |
| ``start_facts`` | what is known of a start before it: code, machine, request, store, history, snapshot |
| ``start_checks`` | the ordered list of why a run refuses to start (``START_CHECKS``) |
| ``start_refusals`` | the refusals of that list, a function each |
| ``horizon`` | for how long a snapshot can still be restored; positions, judged by what topics still hold |
"""
