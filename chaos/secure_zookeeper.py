"""`python -m chaos.secure_zookeeper LISTEN DIR SETTINGS`: one ZooKeeper server with TLS, for runs in network namespaces.

`ottla zookeeper` has no TLS. SETTINGS are lines of zoo.cfg, as a JSON object.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from ottla.server.zookeeper_ensemble import Ensemble
from ottla.spark.java import java_home


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    made = Ensemble(Path(sys.argv[2]), java_home(needed_by="ZooKeeper"), listen=(host, int(port)), settings=json.loads(sys.argv[3]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        made.start()
        print(f"ottla: zookeeper ready on {made.connect}", flush=True)
        signal.pause()
    finally:
        made.stop()


if __name__ == "__main__":
    main()
