"""Entries -> samples: keys and parts, joined tables, labels, required parts; tables in, tables out."""
