"""A stage's part of a snapshot: captured while its query runs, uploaded, read again, restored.

| file | what it owns |
|---|---|
| ``take`` | the whole of it, for one stage |
| ``capture`` | which files a restart at batch N needs; keeps captured files alive while they are uploaded |
| ``checkpoint_files`` | the formats of Spark's checkpoint files |
| ``state_files`` | the same for ``state/`` |
| ``remote_state`` | the same for state in an object store |
| ``rewritten`` | a restore's own texts: paths of its directory, and a query made of a part of another one |
| ``upload`` | new files only, checksums recorded, manifest last; a manifest as the shared-state registry wants it |
| ``manifest`` | a stage's file list as stored; the pages of such a file, added up before they are unpacked |
| ``stored`` | a stored snapshot, opened for reading: the only way to its files |
| ``restore`` | a stage's working directory from a snapshot; a local copy of the latest checkpoint |
| ``batch_notes`` | small files of each micro-batch, of which a cut takes one: own states, counts of rows |
| ``rescale`` | another number of state partitions; counts and hashes of a state, to tell whether it is the same |
"""
