"""Where Divide-and-Conquer divides a network: layers, their divergences, and the choice of the split."""
