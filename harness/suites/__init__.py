"""Many runs at once: specs × settings × seeds, made on Spark and kept in a store.

`reading` and `plan` read a suite from YAML; `record` gives it a directory in the store; `job` makes its runs in Spark
tasks (`spark_task`) and collects their results; `expectations` and `report` evaluate and show them. `comparison` does
the same for settings under paired schedules of faults. Shipped suites lie here, shipped comparisons in
`harness/comparisons`.
"""
