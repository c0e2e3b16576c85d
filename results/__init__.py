"""What runs leave behind: run directories, tables, figures, reports."""
