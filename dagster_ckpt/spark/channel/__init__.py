"""A channel: the durable log between a stage and its readers.

| file | what it owns |
|---|---|
| ``log`` | the append-only log |
| ``entries`` | its entries, and which barriers among them readers may pass |
| ``schema`` | the schema of its rows |
| ``source`` | a channel log as a Spark source |
| ``sink`` | micro-batches into a channel log |
| ``positions`` | how far a stage has read its inputs, from Spark's commit log |
| ``batch_input`` | the rows of one micro-batch's input, read again |
| ``in_flight`` | a log restored; in-flight data of an unaligned checkpoint: stored, and put back |
"""
