"""Handlers of a broker, one module for each group of APIs."""
