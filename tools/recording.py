"""Makes docs/images/quick-start.svg: the commands of the README's quick start, run against a real broker, drawn by rich.

    python tools/recording.py                    (make recording)

Each command runs in a terminal of its own (a pseudo-terminal of `COLUMNS` columns), so that the picture shows what a user sees. Text is
drawn with the viewer's own monospaced font: the picture loads nothing.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ottla.testing import Broker

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "quick-start.svg"
PICTURE_BYTES_MAX = 200_000
COLUMNS, TIMEOUT_S = 100, 60
EXAMPLE = re.compile(r"<!-- example: quick start -->\n```\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Shown besides the commands of the quick start: what they left.
MORE = ("ottla topic list", "ottla group lag billing")
#: rich's own font comes from another host.
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def commands() -> list[str]:
    """The commands of the README's quick start."""
    example = EXAMPLE.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert example is not None, "the README has a quick start"
    return [line.removeprefix("$ ") for line in example[1].splitlines() if line.startswith("$ ")]


def terminal_output(command: str, environment: dict[str, str]) -> str:
    """What a command writes to a terminal. Raises: CalledProcessError, if it fails."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["bash", "-c", f"set -o pipefail; {command}"], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            # Linux reports the end of a terminal as an error.
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    output = b"".join(parts).decode()
    if code := process.wait(TIMEOUT_S):
        raise subprocess.CalledProcessError(code, command, output)
    return final_lines(output)


def final_lines(output: str) -> str:
    """The lines as they stand at the end: a line that was redrawn in place is there once, an erased one not at all."""
    lines = []
    for line in output.replace("\r\n", "\n").split("\n"):
        shown = re.split(r"\r|\x1b\[2K", line)[-1]
        if shown or "\r" not in line:
            lines.append(shown)
    return "\n".join(lines).rstrip("\n")


def picture(steps: list[tuple[str, str]]) -> str:
    """Commands and their outputs as SVG."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, highlight=False)
        for command, output in steps:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            if output:
                console.print(Text.from_ansi(output))
        return FONTS.sub("", console.export_svg(title="Ottla: the first minute", clear=True))


def main() -> None:
    with Broker() as broker, tempfile.TemporaryDirectory() as directory:
        environment = {
            **os.environ, "OTTLA_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "OTTLA_CONFIG": f"{directory}/config.toml",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "COLUMNS": str(COLUMNS), "TERM": "xterm-256color",
        }  # fmt: skip
        environment.pop("NO_COLOR", None)
        steps = [(command, terminal_output(command, environment)) for command in (*commands(), *MORE)]
    svg = picture(steps)
    assert not re.search(r"""(?:href=|src=|url\()["']?https?:""", svg), "the picture loads nothing"
    assert len(svg) <= PICTURE_BYTES_MAX, f"{len(svg)} bytes"
    PICTURE.write_text(svg, encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {len(svg)} bytes, {len(steps)} commands")


if __name__ == "__main__":
    main()
