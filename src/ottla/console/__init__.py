"""The console: a web application that shows and changes a cluster of Ottla, Kafka or another broker that speaks Kafka's protocol."""
