"""What is deployed: one folder a system under test."""
