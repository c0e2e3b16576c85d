"""The node agent: carries out everything an environment does to a node, by the command `faultline-node` on
the node.

Standard library only, Python 3.11, Linux. It knows no system under test: it starts a given command, and treats that
process and its children as one. Its state between two commands is in /run/faultline. By hand:

    faultline-node describe
    echo '{"argv": ["sleep", "60"], "log": "/tmp/log"}' | faultline-node start
    echo '{"cut": [{"from": "192.0.2.7", "how": "drop"}]}' | faultline-node network
    faultline-node clock set --jump-ms 1500 --rate 0.5
    faultline-node remove

`serve` carries out many commands in one process. Every other command but `collect` prints one JSON object and exits 0,
or prints one line on standard error and exits 1. `python -m images.base.agent --help` lists them.

*True time* is CLOCK_BOOTTIME of the machine, in nanoseconds: no fault changes it, and all containers of a machine share
it. All times reported by the agent are true time.
"""
