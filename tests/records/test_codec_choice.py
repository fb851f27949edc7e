"""Which record codec is loaded."""

import subprocess
import sys

PROGRAM = """
import sys, warnings
sys.modules["ottla.records._native"] = None
warnings.simplefilter("always")
from ottla.records import NATIVE
print(NATIVE)
"""


def test_a_package_without_the_compiled_codec_works_and_warns() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert "RuntimeWarning: ottla was installed without its compiled record codec" in done.stderr
