"""The coordinator's gauges elsewhere. Without this folder Prometheus and OpenTelemetry hear of no checkpoint.

| file | what it owns |
|---|---|
| ``command`` | the command ``metrics``; the gauges as Prometheus' text, once or served |
| ``gauges`` | names, meaning and values, after Flink; as metrics and spans of OpenTelemetry |
"""
