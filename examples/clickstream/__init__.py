"""Clicks in Kafka become sessions and page counts in Delta tables."""
