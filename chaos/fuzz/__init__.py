"""The protocol fuzzer: valid requests with hostile structure, and mutated bytes, for a broker in this process or behind a socket.

``python -m chaos.fuzz`` runs it. A chunk is 1,000 frames made from one seed, so a finding is replayed by its seed.

    requests.py   makes valid requests from the declared schemas, with values from vocabulary.py and batches.py
    mutations.py  changes tokens and bits of their bytes
    stage.py      brokers in this process, without sockets or threads, in virtual time
    chunk.py      one chunk on a stage, with a well-behaved client; shrinks what fails
    sockets.py    the same frames for ``ottla serve``
    oracle.py     what must hold for every answer
"""
