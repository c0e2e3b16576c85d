"""The Parquet store: layout, tables, stored runs, and Spark over them."""
