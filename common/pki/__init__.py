"""A private certificate authority: its certificates say who may act as what in a federation."""
