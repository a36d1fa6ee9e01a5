"""Plan of an upgrade: whether changed code breaks the state of a pipeline, told in a pull request.

Without it the run tells it, at night: the rules of ``spark/plan`` are asked when a stage starts. Here they are asked
of a snapshot's facts alone, with no source, table, store or state at hand.

| file | what it owns |
|---|---|
| ``plan`` | what becomes of each stage, source and sink |
| ``comparison`` | a query compared with the snapshot's facts: verdicts; sources out of reach, stood in for |
| ``command`` | ``dagster-ckpt plan`` |
| ``branch`` | what is rebuilt with a sink, and why it cannot be; where the sources of what is rebuilt begin |
| ``rebuild`` | a branch that catches up, and takes over |
| ``joined`` | the savepoint in which it has |
| ``upgrade`` | ``dagster-ckpt upgrade`` |
"""
