"""Results of runs: run directories, the Parquet store, measures, figures and pages."""
