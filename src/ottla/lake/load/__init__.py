"""Loading files into a topic. Importing it raises ImportError without pyarrow."""

from ottla.client.arrow.columns import needed_arrow

needed_arrow()
