"""Who comes when: permutations, lanes and windows, shares of ranks, mixtures; pure functions of a position."""
