"""Lab: a pipeline's world for tests: its stages, files that arrive, runs in this process, and what they leave."""
