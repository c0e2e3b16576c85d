"""`faultline doctor`: checks prerequisites on this machine and its hosts, and names a remedy for each missing one.

`diagnosis` lists the prerequisites and decides which are met. The facts come from `probes` (this machine) and from
`engine_and_hosts` (the Docker engine and hosts over SSH).
"""
