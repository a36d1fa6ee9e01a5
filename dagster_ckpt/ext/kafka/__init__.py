"""A topic of Kafka as a sink: the rows of a checkpoint and the position in one transaction. And topics that are read.

| file | what it owns |
|---|---|
| ``sink`` | ``KafkaSink``: the port's steps; a row as a message |
| ``broker`` | producers, topics and positions of one topic, what Kafka's errors mean |
| ``topic_log`` | topics that sources read: their ends, their clocks, a consumer group's offsets |
"""
