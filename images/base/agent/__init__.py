"""The node agent: everything an environment does to a node, done on the node, by the command `faultline-node`.

Standard library only, Python 3.11, Linux. It knows no system under test: it starts what it is told to start, and treats
that process and its children as one. What it keeps between two commands stands in /run/faultline. By hand:

    faultline-node describe
    echo '{"argv": ["sleep", "60"], "log": "/tmp/log"}' | faultline-node start
    echo '{"cut": [{"from": "192.0.2.7", "how": "drop"}]}' | faultline-node network
    faultline-node clock set --jump-ms 1500 --rate 0.5
    faultline-node remove

Every command but `collect` prints one JSON object and exits 0, or prints one line on standard error and exits 1.
`python -m images.base.agent --help` lists them.

*True time* is CLOCK_BOOTTIME of the machine, in nanoseconds: no fault bends it, and all containers of a machine share
it. Whatever the agent tells of time is in it.
"""
