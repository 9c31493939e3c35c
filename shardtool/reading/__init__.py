"""Samples by number or key, here and on a store, and what is made of them: extract, cat, ls."""
