"""`ottla pipeline`: plan, run and inspect pipelines on Spark."""
