"""HTML pages: reports of runs, suites, comparisons and trends, and the pages of ."""
