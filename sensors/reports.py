"""Sensor that refreshes reports: Dagster asks their automation conditions twice a minute."""

import dagster as dg

REFRESH_REPORTS = dg.AutomationConditionSensorDefinition(
    "refresh_reports",
    target=dg.AssetSelection.assets("delays_report"),
    default_status=dg.DefaultSensorStatus.RUNNING,
)
