"""Restore: what an attempt starts from, and why one refuses to start.

| file | what it owns |
|---|---|
| ``facts`` | the durable facts the choice is made on; the snapshots that a restore point names |
| ``lineage`` | the identity of a history, and the refusal to run behind what the world has seen of it |
| ``choice`` | the choice, as a value: nothing, the previous working directory, or a snapshot |
| ``from_snapshot`` | a snapshot's metadata checked against the graph |
| ``matching`` | which saved state goes to which stage |
| ``parted`` | a snapshot of queries that are parts of them now |
| ``finished_state`` | whether finished stages fit the graph |
| ``start_facts`` | what is known of a start before it: code, machine, request, store, history, snapshot |
| ``start_checks`` | the ordered list of why a run refuses to start (``START_CHECKS``) |
| ``start_refusals`` | the refusals of that list, a function each |
| ``horizon`` | for how long a snapshot can still be restored; positions, judged by what topics still hold |
"""
