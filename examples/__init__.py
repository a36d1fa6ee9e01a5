"""Pipelines to start from, each run and checked by one command (``make examples``)."""
