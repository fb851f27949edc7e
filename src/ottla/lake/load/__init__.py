"""Loading files into a topic. Importing it raises ImportError without pyarrow."""

from ottla.client.arrow.optional import needed_arrow

needed_arrow()
