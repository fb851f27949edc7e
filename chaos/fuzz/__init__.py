"""The protocol fuzzer: valid requests with hostile structure, and mutated bytes, for brokers in this process or behind sockets.

``python -m chaos.fuzz`` runs it. A chunk is 1,000 frames generated from one seed, so a finding is replayed by its seed.

    requests.py   generates valid requests from the declared schemas, with values from vocabulary.py and batches.py
    mutations.py  changes tokens and bits of their bytes
    environment.py      brokers in this process, without sockets or threads, in virtual time
    chunk.py      one chunk on these brokers, with a well-behaved client; shrinks failing ones
    sockets.py    the same frames for ``ottla serve``
    oracle.py     what must hold for every response
"""
