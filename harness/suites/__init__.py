"""Many runs at once: specs × settings × seeds, made on Spark and kept in a store.

`reading` makes a `plan` of a file of YAML; `begun` gives it a directory in the store; `running` deals its runs out to
Spark tasks (`task`) and takes in what they leave; `report` tells of it all. `comparing` does the same for settings
under paired schedules of faults. Shipped suites lie here, shipped comparisons in `harness/comparisons`.
"""
