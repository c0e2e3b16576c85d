"""Kafka's protocol on the wire and the record batch; part of no system."""
