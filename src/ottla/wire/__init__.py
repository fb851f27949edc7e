"""Bytes and messages: the Kafka protocol as declared classes, with no I/O.

`declare` says what a message is, `messages` holds one module per Kafka API, `compile` turns a class and a version into straight-line
Python, `framing` puts headers and the length prefix around it, `errors` is Kafka's table of error codes.
"""
