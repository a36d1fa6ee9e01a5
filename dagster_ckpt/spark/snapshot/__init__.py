"""A stage's part of a snapshot: captured while its query runs, uploaded, read again, restored.

| file | what it owns |
|---|---|
| ``take`` | the whole of it, for one stage |
| ``capture`` | which files a restart at batch N needs |
| ``checkpoint_files`` | the formats of Spark's checkpoint files |
| ``state_files`` | the same for ``state/`` |
| ``remote_state`` | the same for state in an object store |
| ``own_paths`` | paths of its own directory that Spark writes into a checkpoint |
| ``pins`` | keeps captured files alive while they are uploaded |
| ``upload`` | new files only, checksums recorded, manifest last; a manifest as the shared-state registry wants it |
| ``manifest`` | a stage's file list as stored |
| ``parquet_pages`` | the pages of such a file, added up before they are unpacked |
| ``stored`` | a stored snapshot, opened for reading: the only way to its files |
| ``restore`` | a stage's working directory from a snapshot |
| ``parted`` | a part of a query, made a query of its own |
| ``local_copy`` | a local copy of the latest checkpoint |
| ``state_fingerprint`` | counts and hashes of a state, to tell whether it is the same |
| ``row_counts`` | rows that conditions refused: totals of a stage, and since a checkpoint |
| ``batch_notes`` | small files of each micro-batch, of which a cut takes one; states of objects that are stages' own |
| ``rescale`` | another number of state partitions |
"""
