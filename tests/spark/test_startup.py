"""Python processes of Spark read pyspark from where it is installed, which is much faster than from its zip."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from ottla.spark.session import STARTUP

LIBRARY = Path(pyspark.__file__).parent / "python" / "lib"


def told(tmp_path: Path, *entries: Path) -> list[str]:
    program = "import os, pyspark, py4j; print(pyspark.__file__); print(py4j.__file__); print(os.environ.get('RAN', 'no'))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, entries))}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment).stdout.split()


def test_the_zip_is_passed_over_and_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['RAN'] = 'yes'")
    zips = sorted(LIBRARY.glob("*.zip"))
    assert ".zip" in "".join(told(tmp_path, *zips)), "as Spark starts them"
    spark, py4j, ran = told(tmp_path, *zips, STARTUP, tmp_path)
    assert ".zip" not in spark + py4j
    assert spark == pyspark.__file__
    assert ran == "yes"


def test_a_zip_of_another_spark_is_not_touched(tmp_path: Path) -> None:
    library = tmp_path / "pyspark" / "python" / "lib"
    library.mkdir(parents=True)
    other = library / "pyspark.zip"
    other.write_bytes((LIBRARY / "pyspark.zip").read_bytes())
    assert str(other) in told(tmp_path, other, STARTUP)[0]
