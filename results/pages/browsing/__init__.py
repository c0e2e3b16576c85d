"""The pages of `faultline serve`. Sockets are in `harness.cli.serve`."""
