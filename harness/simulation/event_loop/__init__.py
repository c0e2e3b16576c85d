"""The event loop of one simulated process: virtual time, callbacks, timers, refusals."""
