"""Tables in sync with topics: Delta and Parquet."""
