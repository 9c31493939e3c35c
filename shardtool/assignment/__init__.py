"""Who reads what: ranks, nodes and loader workers over the reading order, as tables and files."""
