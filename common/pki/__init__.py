"""A private certificate authority: who may act as what in a federation."""
