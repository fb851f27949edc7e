"""The Kafka protocol as declared message classes, without I/O.

`declare` defines message declarations, `messages` has one module per Kafka API, `compile` turns a class and a version into straight-line
Python, `framing` adds headers and the length prefix, `errors` has Kafka's error codes.
"""
