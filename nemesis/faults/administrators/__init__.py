"""The family `admin`: what administrators ask of a cluster while other faults are active."""
