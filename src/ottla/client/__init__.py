"""The client: pure state machines and asyncio around them.

Pure, without clock, socket or thread: `producer.accumulator`, `producer.inflight`, `fetch.fetcher`, `fetch.session`, `transport.cluster`
(metadata), `transport.backoff`, `producer.partitioner`, and both memberships in `group`.

On asyncio: `transport.network` (connections, metadata), `producer.sender`, `fetch.fetch_loop`, `group.coordinator_client`, and the public
clients `producer`, `consumer` and `admin`. `sync` has the same clients for blocking code, with the event loop in a thread.

Settings are Kafka's names in snake case, declared in `options`. All errors are a `KafkaError`: a broker's, or one of `errors`.

The clients log through Python's `logging`, below the logger `ottla`. It is silent until the program configures logging.
"""

import logging

logging.getLogger("ottla").addHandler(logging.NullHandler())
