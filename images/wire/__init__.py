"""Kafka's wire protocol and record batch; independent of any system under test."""
