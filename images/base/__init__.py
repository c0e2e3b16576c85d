"""The operating-system layer every node image stands on, and what runs in it beside the system under test."""
