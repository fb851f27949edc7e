"""The pipeline file: parsed and validated."""
