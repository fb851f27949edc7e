"""The client: pure machines that decide, thin faces that carry.

Pure, without a clock, a socket or a thread: `accumulator` (records to send, by partition), `inflight` (how much a broker may owe us),
`fetcher` and `fetch_session` (positions, what to ask for next), `cluster` (who leads what), `backoff`, `partitioner`, `offsets`.

Around them, on asyncio: `network` (connections, metadata), `sender` (the accumulator's postman) and the faces `producer`, `consumer`,
`admin`; `sync` offers the same faces to code that blocks, with the loop in a thread of its own.

Settings are Kafka's names in snake case, declared in `options`. Everything that goes wrong is a `KafkaError`, the broker's or one of
`errors`.
"""
