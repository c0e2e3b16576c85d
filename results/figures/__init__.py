"""The figures of a report, one subject a module."""
