"""What stays at a site: what plugins remember of a job, the key of secret randomness, and more.

    states       what plugins remember from task to task, one file for each state
    own_model    a model of the site's own beside the community's
    fingerprint  what makes two tasks the same one
    secret       randomness that nobody outside the site can recompute
    finished     updates that must not be computed twice, until their receipts have arrived

All of it goes through `hansa.common.site.files`: a daemon's files are on its disk, those of a simulated site
in memory.
"""
