"""Numbers about data sets and plans: figures, differences, advice."""
