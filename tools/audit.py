"""``make audit``: looks up known vulnerabilities of the locked dependencies.

Exit code 0: none is known. 1: some are known. 2: the database could not be reached, or does not know some packages, so nothing can be said
about these.
"""

import json
import subprocess
import sys
from pathlib import Path


def main(lock: str) -> int:
    command = [
        str(Path(sys.executable).parent / "pip-audit"),
        "--requirement",
        lock,
        "--disable-pip",
        "--require-hashes",
        "--format",
        "json",
    ]
    done = subprocess.run([*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(
            f"the database of vulnerabilities cannot be asked: {done.stderr.strip().splitlines()[-1:] or done.returncode}", file=sys.stderr
        )
        return 2
    vulnerable = [package for package in found if package.get("vulns")]
    for package in vulnerable:
        for one in package["vulns"]:
            fixed = ", ".join(one.get("fix_versions", [])) or "no version"
            print(f"{package['name']} {package['version']}: {one['id']}, fixed in {fixed}")
    unknown = [package["name"] for package in found if "skip_reason" in package]
    print(f"{len(found) - len(unknown)} packages were checked, {len(vulnerable)} have known vulnerabilities")
    if unknown:
        print(f"{len(unknown)} packages could not be checked: {', '.join(unknown)}", file=sys.stderr)
    return 1 if vulnerable else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
