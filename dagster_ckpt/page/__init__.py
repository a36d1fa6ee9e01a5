"""Checkpoint page of a pipeline: what Flink's checkpoint tab shows, from the store and the storage alone.

| file | what |
|---|---|
| ``facts`` | what is shown, read at one moment |
| ``sections`` | its parts, as HTML |
| ``html`` | the page: one file without anything from elsewhere, light and dark; its read-only server |
"""
