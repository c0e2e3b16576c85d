"""Clients of librdkafka and of Kafka's Java library, in processes of their own (`workloads.clients.library`)."""
