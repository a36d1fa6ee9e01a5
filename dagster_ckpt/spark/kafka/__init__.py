"""A topic of Kafka as a sink: the rows of a checkpoint and the position in one transaction.

| file | what it owns |
|---|---|
| ``sink`` | ``KafkaSink``: the port's steps |
| ``broker`` | producers, topics and positions of one topic, what Kafka's errors mean |
| ``messages`` | a row as a message |
"""
