"""The arithmetic of FedDAF: from statistics of models to weights of contributions (feddaf §2, §3).

statistics   one vector of numbers for each model
reduce       the few directions in which the vectors differ by more than chance
mixture      groups along these directions: Ward's clustering, then EM, for every number of groups
variational  the paper's variational autoencoder, started from that solution; the only part that needs torch
weights      from groups to weights
fit          all of these steps, in order
grouping     a fit on behalf of the weigher
records      what the weigher asks, remembers and reports

Everything is float64 and a pure function of its arguments: the same numbers in, the same bits out.
"""
