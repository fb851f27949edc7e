"""Tables in sync with topics: Delta, Iceberg and Parquet. Importing it raises ModuleNotFoundError without pyarrow or deltalake."""

try:
    import deltalake  # noqa: F401
    import pyarrow  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"Delta tables need {error.name}: pip install 'ottla[lake]'", name=error.name) from None
