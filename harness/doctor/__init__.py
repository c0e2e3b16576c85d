"""`faultline doctor`: what this machine and its hosts have of what runs need, and what to do about the rest.

`diagnosis` has the subjects and what each is needed for; it only judges. What it judges is asked of this machine by
`probes`, and of the engine and of hosts by `engine_and_hosts`.
"""
