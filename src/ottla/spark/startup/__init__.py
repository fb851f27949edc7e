"""On the module path of the Python processes that Spark starts on this machine: sitecustomize.py."""
