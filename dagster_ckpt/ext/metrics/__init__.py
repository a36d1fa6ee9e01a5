"""The coordinator's gauges for Prometheus and OpenTelemetry, from the facts of the checkpoint page.

| file | what it owns |
|---|---|
| ``gauges`` | names, meaning and values, after Flink |
| ``prometheus`` | as Prometheus' text, once or served |
| ``otlp`` | as OpenTelemetry's metrics and spans, sent to a collector |
"""
