"""Brokers known to be wrong in one way, and the campaign that measures how soon each search finds each of them."""
