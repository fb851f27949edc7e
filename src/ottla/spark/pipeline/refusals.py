"""What Spark refuses, as sentences for the reader of a pipeline file."""

import re


def spark_errors() -> type[Exception]:
    """The class of everything Spark raises."""
    from pyspark.errors import PySparkException

    base: type[Exception] = PySparkException
    return base


def reason(error: BaseException) -> str:
    """The sentence in an error of Spark: what was raised in a Python process, or else Spark's first line without its plan."""
    text = str(getattr(error, "getMessage", str)() or error)
    raised, within = [], False
    for line in text.splitlines():
        if within and line and not line[0].isspace():
            raised.append(line)
            within = False
        elif line.endswith("Traceback (most recent call last):"):
            within = True
    ours = [line.partition(": ")[2] or line for line in raised if not line.startswith("py4j.")]
    # What Java raised when Python called it, such as a driver of a database.
    ours = ours or [line[2:].partition(": ")[2] for line in text.splitlines() if line.startswith(": ")][:1]
    sentence = ours[-1] if ours else text.split(";\n")[0].splitlines()[0].strip()
    return re.sub(r"\.? SQLSTATE: \w+$", "", sentence).removeprefix("[USER_RAISED_EXCEPTION] ")
